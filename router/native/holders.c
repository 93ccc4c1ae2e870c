/* router.native.holders: the index's hot half. Its pure Python twin is router/index/holders.py, which says what each of
 * these does; this file is what Python sees of the headers beside it.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "extended.h"
#include "holder_table.h"
#include "walk.h"

static PyTypeObject HolderTableType;

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    HolderTable *table = (HolderTable *)type->tp_alloc(type, 0);
    if (table == NULL)
        return NULL;
    /* A str's hash is salted for each process. */
    PyObject *salted = PyUnicode_FromString("router.native.holders");
    if (salted == NULL) {
        Py_DECREF(table);
        return NULL;
    }
    table->map.seed = (uint64_t)PyObject_Hash(salted);
    Py_DECREF(salted);
    return (PyObject *)table;
}

static void table_dealloc(HolderTable *table) {
    map_free(&table->map);
    sets_free(&table->sets);
    Py_TYPE(table)->tp_free((PyObject *)table);
}

static Py_ssize_t table_length(HolderTable *table) {
    return (Py_ssize_t)table->map.size;
}

/* A column's number from Python; -1 with an exception set. */
static long column_of(PyObject *given) {
    long column = PyLong_AsLong(given);
    if (column == -1 && PyErr_Occurred())
        return -1;
    if (column < 0 || column >= MAX_COLUMNS) {
        PyErr_Format(PyExc_ValueError, "a column is a number from 0 to %d, not %ld", MAX_COLUMNS - 1, column);
        return -1;
    }
    return column;
}

static PyObject *change(HolderTable *table, PyObject *const *args, Py_ssize_t count,
                        Py_ssize_t (*apply)(HolderTable *, uint32_t, BlockHashes *)) {
    BlockHashes blocks;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "a column and its blocks are wanted");
        return NULL;
    }
    long column = column_of(args[0]);
    if (column < 0 || !hashes_open(&blocks, args[1]))
        return NULL;
    Py_ssize_t changed = apply(table, (uint32_t)column, &blocks);
    hashes_close(&blocks);
    return changed < 0 ? NULL : PyLong_FromSsize_t(changed);
}

static PyObject *table_add_method(HolderTable *table, PyObject *const *args, Py_ssize_t count) {
    return change(table, args, count, table_add);
}

static PyObject *table_discard_method(HolderTable *table, PyObject *const *args, Py_ssize_t count) {
    return change(table, args, count, table_discard);
}

static PyObject *table_holds(HolderTable *table, PyObject *const *args, Py_ssize_t count) {
    uint64_t block;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "a column and a block are wanted");
        return NULL;
    }
    long column = column_of(args[0]);
    if (column < 0 || !hash_of(args[1], &block))
        return NULL;
    const Entry *entry = map_find(&table->map, block);
    return PyBool_FromLong(entry != NULL && set_has(&table->sets, entry->set, (uint32_t)column));
}

/* Bits from a mask that Python gives as little-endian bytes; NULL with an exception set. The caller frees them. */
static uint64_t *bits_of(PyObject *mask, uint32_t words) {
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(mask, &bytes, &length) < 0)
        return NULL;
    uint64_t *bits = PyMem_Calloc(words ? words : 1, sizeof *bits);
    if (bits == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < length && i < (Py_ssize_t)words * 8; i++)
        bits[i / 8] |= (uint64_t)(unsigned char)bytes[i] << (i % 8 * 8);
    return bits;
}

static PyObject *table_sweep_part_method(HolderTable *table, PyObject *args) {
    int number;
    PyObject *mask;
    if (!PyArg_ParseTuple(args, "iO!", &number, &PyBytes_Type, &mask))
        return NULL;
    if (number < 0 || number >= MAP_PARTS) {
        PyErr_SetString(PyExc_ValueError, "no such part");
        return NULL;
    }
    uint64_t *columns = bits_of(mask, table->sets.words);
    if (columns == NULL)
        return NULL;
    Py_ssize_t looked_at = table_sweep_part(table, number, columns);
    PyMem_Free(columns);
    return looked_at < 0 ? NULL : PyLong_FromSsize_t(looked_at);
}

static PyObject *table_part(HolderTable *table, PyObject *args) {
    int number, column;
    if (!PyArg_ParseTuple(args, "ii", &number, &column))
        return NULL;
    if (number < 0 || number >= MAP_PARTS || column < 0 || column >= MAX_COLUMNS) {
        PyErr_SetString(PyExc_ValueError, "no such part or column");
        return NULL;
    }
    const Part *part = &table->map.parts[number];
    PyObject *blocks = PyList_New(0);
    for (uint32_t i = 0; blocks != NULL && i < part->capacity; i++) {
        if (!set_has(&table->sets, part->entries[i].set, (uint32_t)column))
            continue;
        PyObject *block = PyLong_FromUnsignedLongLong(entry_hash(&part->entries[i]));
        if (block == NULL || PyList_Append(blocks, block) < 0)
            Py_CLEAR(blocks);
        Py_XDECREF(block);
    }
    return blocks;
}

static PyObject *table_sizeof(HolderTable *table, PyObject *nothing) {
    size_t bytes = sizeof *table;
    for (int i = 0; i < MAP_PARTS; i++)
        bytes += table->map.parts[i].capacity * sizeof(Entry);
    const ColumnSets *sets = &table->sets;
    bytes += sets->capacity * (sets->words * sizeof(uint64_t) + 2 * sizeof(uint32_t)) + sets->buckets * sizeof(uint32_t);
    return PyLong_FromSize_t(bytes);
}

/* The columns asked for, from an array of type code 'i'; -1 stands for nobody. Returns 0 with an exception set. */
static int open_columns(PyObject *given, Py_buffer *view) {
    if (PyObject_GetBuffer(given, view, PyBUF_FORMAT) < 0)
        return 0;
    const int32_t *columns = view->buf;
    int is_good = view->itemsize == 4 && view->format != NULL && strcmp(view->format, "i") == 0;
    for (Py_ssize_t i = 0; is_good && i < view->len / 4; i++)
        is_good = columns[i] >= -1 && columns[i] < MAX_COLUMNS;
    if (!is_good) {
        PyBuffer_Release(view);
        PyErr_SetString(PyExc_TypeError, "columns are an array of type code 'i', each from -1");
    }
    return is_good;
}

static void close_groups(Group *groups, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++)
        PyMem_Free(groups[i].without);
    PyMem_Free(groups);
}

/* Groups from tuples (columns as bytes or None, table or None for each tier); NULL with an exception set. */
static Group *open_groups(PyObject *given, uint32_t words, uint64_t *left, int *is_gpu_alone) {
    Py_ssize_t count = PyTuple_GET_SIZE(given);
    Group *groups = PyMem_Calloc(count ? count : 1, sizeof *groups);
    uint64_t *any = PyMem_Calloc(words, sizeof *any);
    int is_good = groups != NULL && any != NULL;
    if (!is_good)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; is_good && i < count; i++) {
        PyObject *group = PyTuple_GET_ITEM(given, i), *columns, *tables[TIERS];
        if (!PyTuple_Check(group)) {
            PyErr_SetString(PyExc_TypeError, "a group is a tuple");
            is_good = 0;
            break;
        }
        is_good = PyArg_ParseTuple(group, "OOOO", &columns, &tables[GPU], &tables[CPU], &tables[DISK]);
        for (int tier = 0; is_good && tier < TIERS; tier++) {
            if (tables[tier] == Py_None)
                continue;
            if (!PyObject_TypeCheck(tables[tier], &HolderTableType)) {
                PyErr_SetString(PyExc_TypeError, "a tier of a group is a HolderTable or None");
                is_good = 0;
            }
            groups[i].tiers[tier] = (HolderTable *)tables[tier];
            *is_gpu_alone &= tier == GPU;
        }
        if (is_good && columns != Py_None) {
            groups[i].without = bits_of(columns, words);
            is_good = groups[i].without != NULL;
        }
        for (uint32_t word = 0; is_good && word < words; word++) {
            uint64_t with = groups[i].without == NULL ? ~(uint64_t)0 : groups[i].without[word];
            any[word] |= with;
            if (groups[i].without != NULL)
                groups[i].without[word] = ~with;
        }
    }
    for (uint32_t word = 0; is_good && word < words; word++)
        left[word] &= any[word]; /* who has no group holds nothing */
    PyMem_Free(any);
    if (!is_good && groups != NULL)
        close_groups(groups, count);
    return is_good ? groups : NULL;
}

/* For each position its column's number, from `numbers` less those from `less`, which may be NULL. */
static PyObject *by_position(const int32_t *columns, Py_ssize_t count, const int32_t *numbers, const int32_t *less) {
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        int32_t number = columns[i] < 0 ? 0 : numbers[columns[i]] - (less == NULL ? 0 : less[columns[i]]);
        PyObject *item = PyLong_FromLong(number);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    return list;
}

static PyObject *walk_function(PyObject *module, PyObject *args) {
    PyObject *given_groups, *given_chain, *given_columns, *result = NULL;
    Py_buffer view;
    BlockHashes chain;
    if (!PyArg_ParseTuple(args, "O!OO", &PyTuple_Type, &given_groups, &given_chain, &given_columns))
        return NULL;
    if (!open_columns(given_columns, &view))
        return NULL;
    if (!hashes_open(&chain, given_chain)) {
        PyBuffer_Release(&view);
        return NULL;
    }
    const int32_t *columns = view.buf;
    Py_ssize_t count = view.len / 4;
    int32_t last = 0;
    for (Py_ssize_t i = 0; i < count; i++)
        last = columns[i] > last ? columns[i] : last;
    uint32_t words = (uint32_t)last / 64 + 1;
    /* One piece of memory: five sets, then three numbers for each column. */
    char *memory = PyMem_Calloc(words, 5 * sizeof(uint64_t) + 3 * 64 * sizeof(int32_t));
    int is_gpu_alone = 1;
    Group *groups = NULL;
    if (memory == NULL) {
        PyErr_NoMemory();
    } else {
        uint64_t *sets = (uint64_t *)memory;
        int32_t *numbers = (int32_t *)(sets + (size_t)5 * words);
        Walk walk = {words, sets, sets + words, sets + 2 * words, sets + 3 * words, sets + 4 * words,
                     numbers, numbers + (size_t)64 * words, numbers + (size_t)128 * words};
        for (Py_ssize_t i = 0; i < count; i++)
            if (columns[i] >= 0)
                walk.left[columns[i] / 64] |= (uint64_t)1 << (columns[i] % 64);
        groups = open_groups(given_groups, words, walk.left, &is_gpu_alone);
        if (is_gpu_alone)
            walk.beyond_gpu = walk.cpu = NULL;
        if (groups != NULL && walk_chain(&walk, groups, PyTuple_GET_SIZE(given_groups), &chain)) {
            PyObject *blocks = by_position(columns, count, walk.depth, NULL);
            if (blocks != NULL && is_gpu_alone)
                result = Py_BuildValue("(NOO)", blocks, Py_None, Py_None);
            else if (blocks != NULL)
                result = Py_BuildValue("(NNN)", blocks, by_position(columns, count, walk.cpu, NULL),
                                       by_position(columns, count, walk.beyond_gpu, walk.cpu));
        }
    }
    if (groups != NULL)
        close_groups(groups, PyTuple_GET_SIZE(given_groups));
    PyMem_Free(memory);
    hashes_close(&chain);
    PyBuffer_Release(&view);
    return result;
}

/* What `extended` returns where something is in the table; NULL with an exception set. */
static PyObject *extended_list(const HolderTable *table, const uint32_t *sampled, const int32_t *places,
                               Py_ssize_t samples, const int32_t *columns, PyObject *held) {
    Py_ssize_t count = PySequence_Fast_GET_SIZE(held);
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(held, i);
        long long blocks = PyLong_AsLongLong(item);
        long long all = blocks;
        if (columns[i] >= 0)
            all = extended_by(&table->sets, sampled, places, samples, (uint32_t)columns[i], blocks);
        if (blocks == -1 && PyErr_Occurred())
            item = NULL;
        else
            item = all == blocks ? Py_NewRef(item) : PyLong_FromLongLong(all);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    return list;
}

static PyObject *extended_function(PyObject *module, PyObject *args) {
    HolderTable *table;
    PyObject *given_chain, *given_places, *given_columns, *given_held, *chain = NULL, *held = NULL, *result = NULL;
    Py_buffer places_view, columns_view;
    if (!PyArg_ParseTuple(args, "O!OOOO", &HolderTableType, &table, &given_chain, &given_places, &given_columns,
                          &given_held))
        return NULL;
    if (!open_columns(given_columns, &columns_view))
        return NULL;
    if (PyObject_GetBuffer(given_places, &places_view, PyBUF_FORMAT) < 0) {
        PyBuffer_Release(&columns_view);
        return NULL;
    }
    const int32_t *places = places_view.buf;
    uint32_t *sampled = NULL;
    if (places_view.itemsize != 4 || strcmp(places_view.format, "i") != 0)
        PyErr_SetString(PyExc_TypeError, "places are an array of type code 'i'");
    else if ((chain = PySequence_Fast(given_chain, "a chain is a sequence of ints")) != NULL &&
             (held = PySequence_Fast(given_held, "held blocks are a sequence of ints")) != NULL) {
        Py_ssize_t samples = first_place(places, places_view.len / 4, PySequence_Fast_GET_SIZE(chain));
        sampled = PyMem_Malloc((samples + 1) * sizeof *sampled);
        if (PySequence_Fast_GET_SIZE(held) != columns_view.len / 4) {
            PyErr_SetString(PyExc_ValueError, "held blocks are not as many as columns");
        } else if (sampled == NULL) {
            PyErr_NoMemory();
        } else {
            Py_ssize_t found = sampled_sets(table, chain, places, samples, sampled);
            if (found == 0)
                result = Py_NewRef(given_held);
            else if (found > 0)
                result = extended_list(table, sampled, places, samples, columns_view.buf, held);
        }
    }
    PyMem_Free(sampled);
    Py_XDECREF(chain);
    Py_XDECREF(held);
    PyBuffer_Release(&places_view);
    PyBuffer_Release(&columns_view);
    return result;
}

static PyMethodDef table_methods[] = {
    {"add", (PyCFunction)(void (*)(void))table_add_method, METH_FASTCALL, "See the twin."},
    {"discard", (PyCFunction)(void (*)(void))table_discard_method, METH_FASTCALL, "See the twin."},
    {"holds", (PyCFunction)(void (*)(void))table_holds, METH_FASTCALL, "See the twin."},
    {"sweep_part", (PyCFunction)table_sweep_part_method, METH_VARARGS,
     "sweep_part(number, columns): take columns (bytes, little-endian bits) out of one part; how many blocks it had."},
    {"part", (PyCFunction)table_part, METH_VARARGS, "part(number, column): the blocks of one part that a column holds."},
    {"__sizeof__", (PyCFunction)table_sizeof, METH_NOARGS, "Bytes that it takes."},
    {NULL, NULL, 0, NULL},
};

static PySequenceMethods table_sequence = {.sq_length = (lenfunc)table_length};

static PyTypeObject HolderTableType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "router.native.holders.HolderTable",
    .tp_doc = "For each block the set of columns that hold it.",
    .tp_basicsize = sizeof(HolderTable),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = table_new,
    .tp_dealloc = (destructor)table_dealloc,
    .tp_methods = table_methods,
    .tp_as_sequence = &table_sequence,
};

static PyMethodDef functions[] = {
    {"walk", walk_function, METH_VARARGS, "See the twin."},
    {"extended", extended_function, METH_VARARGS, "See the twin."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "holders", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit_holders(void) {
    if (PyType_Ready(&HolderTableType) < 0)
        return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made == NULL)
        return NULL;
    if (PyModule_AddIntConstant(made, "PARTS", MAP_PARTS) < 0 ||
        PyModule_AddObjectRef(made, "HolderTable", (PyObject *)&HolderTableType) < 0)
        Py_CLEAR(made);
    return made;
}
