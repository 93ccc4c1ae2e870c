/* Sets and maps of 64-bit block hashes: the native twin of replica/agent/block_table.py, with the same methods.
 *
 * One open-addressing table with linear probing. Hashes lie in one array and what belongs to them in another, so that a
 * search touches hashes alone; there are no tombstones, since a removal moves later entries back. The table grows by
 * half when three quarters are full: 11 to 16 bytes a hash, whatever the interpreter's integers take. Hash 0 marks an
 * empty slot, so the real hash 0 has a slot of its own behind the others.
 *
 * All methods hold the GIL for microseconds; only growing takes longer (some milliseconds for a million hashes).
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define FIRST_SLOTS 16
#define MAX_SLOTS 0xFFFFFFFFu
#define MAX_WORDS 4096

typedef struct {
    PyObject_HEAD
    uint64_t *keys;        /* slots + 1 hashes; the last is the slot of hash 0 and holds no key */
    unsigned char *values; /* width bytes a slot, beside the keys; NULL where the width is 0 */
    size_t slots;
    size_t size; /* hashes that are in, hash 0 included */
    size_t width;
    int has_zero;
} Table;

/* Spread all bits over all: hashes of simple engines count up. Finalizer of SplitMix64 (Steele, Lea and Flood, 2014). */
static uint64_t mixed(uint64_t key) {
    key ^= key >> 30;
    key *= 0xBF58476D1CE4E5B9u;
    key ^= key >> 27;
    key *= 0x94D049BB133111EBu;
    return key ^ key >> 31;
}

/* A slot in 0 <= slot < slots without a division, for any number of slots (Lemire, 2019). */
static size_t home(const Table *table, uint64_t key) {
    return (size_t)((mixed(key) >> 32) * (uint64_t)table->slots >> 32);
}

static size_t after(const Table *table, size_t slot) { return slot + 1 == table->slots ? 0 : slot + 1; }

/* Where a hash is, or the empty slot where it would be; *found tells which. */
static size_t place(const Table *table, uint64_t key, int *found) {
    if (key == 0) {
        *found = table->has_zero;
        return table->slots;
    }
    size_t slot = home(table, key);
    while (table->keys[slot] != 0 && table->keys[slot] != key) slot = after(table, slot);
    *found = table->keys[slot] == key;
    return slot;
}

static int allocate(Table *table, size_t slots) {
    uint64_t *keys = PyMem_Calloc(slots + 1, sizeof *keys);
    unsigned char *values = table->width ? PyMem_Calloc(slots + 1, table->width) : NULL;
    if (keys == NULL || (table->width && values == NULL)) {
        PyMem_Free(keys);
        PyMem_Free(values);
        PyErr_NoMemory();
        return -1;
    }
    table->keys = keys;
    table->values = values;
    table->slots = slots;
    return 0;
}

static int grow(Table *table) {
    uint64_t *keys = table->keys;
    unsigned char *values = table->values;
    size_t slots = table->slots, width = table->width;
    if (slots > MAX_SLOTS / 3 * 2) {
        PyErr_SetString(PyExc_OverflowError, "too many hashes");
        return -1;
    }
    if (allocate(table, slots + slots / 2) < 0) return -1;
    for (size_t slot = 0; slot < slots; slot++) {
        if (keys[slot] == 0) continue;
        size_t to = home(table, keys[slot]);
        while (table->keys[to] != 0) to = after(table, to);
        table->keys[to] = keys[slot];
        if (width) memcpy(table->values + to * width, values + slot * width, width);
    }
    if (width) memcpy(table->values + table->slots * width, values + slots * width, width);
    PyMem_Free(keys);
    PyMem_Free(values);
    return 0;
}

/* Make room for one more hash, so that `place` stays valid until the next call. */
static int reserve(Table *table) { return table->size * 4 >= table->slots * 3 ? grow(table) : 0; }

static void occupy(Table *table, size_t slot, uint64_t key) {
    if (key == 0) table->has_zero = 1;
    else table->keys[slot] = key;
    table->size++;
}

/* Empty a slot, and move back what probed past it. */
static void vacate(Table *table, size_t slot) {
    size_t width = table->width;
    table->size--;
    if (slot == table->slots) {
        table->has_zero = 0;
        return;
    }
    for (size_t next = after(table, slot); table->keys[next] != 0; next = after(table, next)) {
        size_t wanted = home(table, table->keys[next]);
        if (slot <= next ? slot < wanted && wanted <= next : slot < wanted || wanted <= next) continue;
        table->keys[slot] = table->keys[next];
        if (width) memcpy(table->values + slot * width, table->values + next * width, width);
        slot = next;
    }
    table->keys[slot] = 0;
}

static int hash_of(PyObject *object, uint64_t *key) {
    unsigned long long value = PyLong_AsUnsignedLongLong(object);
    if (value == (unsigned long long)-1 && PyErr_Occurred()) return -1;
    *key = value;
    return 0;
}

static PyObject *value_at(const Table *table, size_t slot) {
    return PyBytes_FromStringAndSize((const char *)table->values + slot * table->width, (Py_ssize_t)table->width);
}

/* Whether a value has the width; its bytes. */
static const char *value_of(const Table *table, PyObject *object) {
    if (!PyBytes_Check(object) || (size_t)PyBytes_GET_SIZE(object) != table->width) {
        PyErr_Format(PyExc_ValueError, "a value is bytes of length %zu", table->width);
        return NULL;
    }
    return PyBytes_AS_STRING(object);
}

static int put(Table *table, uint64_t key, const char *value) {
    int found;
    if (reserve(table) < 0) return -1;
    size_t slot = place(table, key, &found);
    if (!found) occupy(table, slot, key);
    if (table->width) memcpy(table->values + slot * table->width, value, table->width);
    return !found;
}

/* What both types share. */

static Table *made(PyTypeObject *type, size_t width) {
    Table *table = (Table *)type->tp_alloc(type, 0);
    if (table == NULL) return NULL;
    table->width = width;
    if (allocate(table, FIRST_SLOTS) < 0) {
        Py_DECREF(table);
        return NULL;
    }
    return table;
}

static void dealloc(PyObject *self) {
    Table *table = (Table *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(table->keys);
    PyMem_Free(table->values);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t length(PyObject *self) { return (Py_ssize_t)((Table *)self)->size; }

static int contains(PyObject *self, PyObject *block) {
    uint64_t key;
    int found;
    if (hash_of(block, &key) < 0) return -1;
    place((Table *)self, key, &found);
    return found;
}

static PyObject *all_keys(const Table *table) {
    PyObject *data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(table->size * sizeof(uint64_t)));
    if (data == NULL) return NULL;
    char *to = PyBytes_AS_STRING(data);
    for (size_t slot = 0; slot <= table->slots; slot++) {
        if (slot == table->slots ? !table->has_zero : table->keys[slot] == 0) continue;
        memcpy(to, &table->keys[slot], sizeof(uint64_t));
        to += sizeof(uint64_t);
    }
    return data;
}

/* Sets. */

static PyObject *set_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"words", NULL};
    Py_buffer data = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|y*", names, &data)) return NULL;
    Table *table = NULL;
    if (data.len % 8) PyErr_SetString(PyExc_ValueError, "hashes are words of 8 bytes");
    else table = made(type, 0);
    for (Py_ssize_t at = 0; table != NULL && at < data.len; at += 8) {
        uint64_t key;
        memcpy(&key, (const char *)data.buf + at, sizeof key);
        if (put(table, key, NULL) < 0) Py_CLEAR(table);
    }
    if (data.obj != NULL) PyBuffer_Release(&data);
    return (PyObject *)table;
}

/* Add or take out each hash; return those where that changed anything, in order. */
static PyObject *each(Table *table, PyObject *blocks, int adding) {
    PyObject *items = PySequence_Fast(blocks, "hashes are a sequence");
    if (items == NULL) return NULL;
    PyObject *changed = PyList_New(0);
    for (Py_ssize_t index = 0; changed != NULL && index < PySequence_Fast_GET_SIZE(items); index++) {
        PyObject *block = PySequence_Fast_GET_ITEM(items, index);
        uint64_t key;
        int found;
        if (hash_of(block, &key) < 0 || (adding && reserve(table) < 0)) {
            Py_CLEAR(changed);
            break;
        }
        size_t slot = place(table, key, &found);
        if (found == adding) continue;
        if (adding) occupy(table, slot, key);
        else vacate(table, slot);
        if (PyList_Append(changed, block) < 0) Py_CLEAR(changed);
    }
    Py_DECREF(items);
    return changed;
}

static PyObject *set_add_all(PyObject *self, PyObject *blocks) { return each((Table *)self, blocks, 1); }

static PyObject *set_discard_all(PyObject *self, PyObject *blocks) { return each((Table *)self, blocks, 0); }

static PyObject *set_words(PyObject *self, PyObject *unused) { return all_keys((Table *)self); }

static PyMethodDef set_methods[] = {
    {"add_all", set_add_all, METH_O, "Put hashes in; return those that are new, in order."},
    {"discard_all", set_discard_all, METH_O, "Take hashes out; return those that were in, in order."},
    {"words", set_words, METH_NOARGS, "Return all hashes as 64-bit words of this machine's byte order."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot set_slots[] = {
    {Py_tp_doc, "A set of unsigned 64-bit hashes."},
    {Py_tp_new, set_new},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, set_methods},
    {Py_sq_length, length},
    {Py_sq_contains, contains},
    {0, NULL},
};

static PyType_Spec set_spec = {"router.native.block_table.BlockSet", sizeof(Table), 0, Py_TPFLAGS_DEFAULT, set_slots};

/* Maps. */

static PyObject *map_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"width", "blocks", "values", NULL};
    Py_ssize_t width = 16;
    Py_buffer blocks = {0}, values = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|ny*y*", names, &width, &blocks, &values)) return NULL;
    Table *table = NULL;
    if (width < 1 || width > MAX_WORDS * 8) PyErr_SetString(PyExc_ValueError, "a width is 1 to 32768 bytes");
    else if (blocks.len % 8 || values.len / width != blocks.len / 8 || values.len % width)
        PyErr_SetString(PyExc_ValueError, "hashes and values are not equally many");
    else table = made(type, (size_t)width);
    for (Py_ssize_t index = 0; table != NULL && index < blocks.len / 8; index++) {
        uint64_t key;
        memcpy(&key, (const char *)blocks.buf + index * 8, sizeof key);
        if (put(table, key, (const char *)values.buf + index * width) < 0) Py_CLEAR(table);
    }
    if (blocks.obj != NULL) PyBuffer_Release(&blocks);
    if (values.obj != NULL) PyBuffer_Release(&values);
    return (PyObject *)table;
}

/* The value of one hash, taken out where wanted; None where it is not in. */
static PyObject *value_for(Table *table, PyObject *block, int taking) {
    uint64_t key;
    int found;
    if (hash_of(block, &key) < 0) return NULL;
    size_t slot = place(table, key, &found);
    if (!found) Py_RETURN_NONE;
    PyObject *value = value_at(table, slot);
    if (value != NULL && taking) vacate(table, slot);
    return value;
}

static PyObject *values_for(Table *table, PyObject *blocks, int taking) {
    PyObject *items = PySequence_Fast(blocks, "hashes are a sequence");
    if (items == NULL) return NULL;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
    PyObject *values = PyList_New(count);
    for (Py_ssize_t index = 0; values != NULL && index < count; index++) {
        PyObject *value = value_for(table, PySequence_Fast_GET_ITEM(items, index), taking);
        if (value == NULL) Py_CLEAR(values);
        else PyList_SET_ITEM(values, index, value);
    }
    Py_DECREF(items);
    return values;
}

static PyObject *map_get(PyObject *self, PyObject *block) { return value_for((Table *)self, block, 0); }

static PyObject *map_get_all(PyObject *self, PyObject *blocks) { return values_for((Table *)self, blocks, 0); }

static PyObject *map_pop_all(PyObject *self, PyObject *blocks) { return values_for((Table *)self, blocks, 1); }

static PyObject *map_put_all(PyObject *self, PyObject *args) {
    Table *table = (Table *)self;
    PyObject *blocks, *values, *keys = NULL, *items = NULL;
    if (!PyArg_ParseTuple(args, "OO", &blocks, &values)) return NULL;
    keys = PySequence_Fast(blocks, "hashes are a sequence");
    items = keys == NULL ? NULL : PySequence_Fast(values, "values are a sequence");
    int ok = items != NULL;
    if (ok && PySequence_Fast_GET_SIZE(keys) != PySequence_Fast_GET_SIZE(items)) {
        PyErr_SetString(PyExc_ValueError, "hashes and values are not equally many");
        ok = 0;
    }
    for (Py_ssize_t index = 0; ok && index < PySequence_Fast_GET_SIZE(keys); index++) {
        uint64_t key;
        const char *value = value_of(table, PySequence_Fast_GET_ITEM(items, index));
        ok = value != NULL && hash_of(PySequence_Fast_GET_ITEM(keys, index), &key) == 0 && put(table, key, value) >= 0;
    }
    Py_XDECREF(keys);
    Py_XDECREF(items);
    if (!ok) return NULL;
    Py_RETURN_NONE;
}

static PyObject *map_dump(PyObject *self, PyObject *unused) {
    Table *table = (Table *)self;
    PyObject *keys = all_keys(table);
    PyObject *values = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(table->size * table->width));
    if (keys == NULL || values == NULL) {
        Py_XDECREF(keys);
        Py_XDECREF(values);
        return NULL;
    }
    char *to = PyBytes_AS_STRING(values);
    for (size_t slot = 0; slot <= table->slots; slot++) {
        if (slot == table->slots ? !table->has_zero : table->keys[slot] == 0) continue;
        memcpy(to, table->values + slot * table->width, table->width);
        to += table->width;
    }
    return Py_BuildValue("(NN)", keys, values);
}

static PyMethodDef map_methods[] = {
    {"get", map_get, METH_O, "Return a hash's value, or None."},
    {"get_all", map_get_all, METH_O, "Return the value of each hash, None where it is not in."},
    {"put_all", map_put_all, METH_VARARGS, "Let hashes have these values, each of the map's width."},
    {"pop_all", map_pop_all, METH_O, "Take hashes out; return the value of each, None where it was not in."},
    {"dump", map_dump, METH_NOARGS, "Return all hashes as 64-bit words of this machine, and their values in order."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot map_slots[] = {
    {Py_tp_doc, "A map from unsigned 64-bit hashes to bytes of a fixed width."},
    {Py_tp_new, map_new},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, map_methods},
    {Py_sq_length, length},
    {Py_sq_contains, contains},
    {0, NULL},
};

static PyType_Spec map_spec = {"router.native.block_table.BlockMap", sizeof(Table), 0, Py_TPFLAGS_DEFAULT, map_slots};

static int add_type(PyObject *module, PyType_Spec *spec) {
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type == NULL) return -1;
    int outcome = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return outcome;
}

static int exec_module(PyObject *module) {
    return add_type(module, &set_spec) < 0 || add_type(module, &map_spec) < 0 ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, exec_module}, {0, NULL}};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "block_table", "Sets and maps of block hashes.", 0, NULL, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_block_table(void) { return PyModuleDef_Init(&module_def); }
