/* Heads that come again, and what is made of them: the native twin of router/proxy/head_pattern.py, which says what each
 * function is for.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

#define DIGITS 18 /* the longest length that is taken: it fits 63 bits */

typedef struct {
    PyObject_HEAD
    PyObject *raw;           /* the head that was kept */
    Py_ssize_t begin, after; /* its digits' place in it */
    long long length;        /* of the head that matched last */
    Py_ssize_t end;          /* where that ended */
} Pattern;

static PyObject *pattern_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    Pattern *self = (Pattern *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->raw = PyBytes_FromStringAndSize(NULL, 0);
    if (self != NULL && self->raw == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int pattern_init(Pattern *self, PyObject *args, PyObject *named) {
    PyObject *raw;
    Py_ssize_t begin, after;
    if (named != NULL && PyDict_GET_SIZE(named) != 0) {
        PyErr_SetString(PyExc_TypeError, "no arguments by name");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "S(nn)", &raw, &begin, &after))
        return -1;
    if (begin < 0 || after < begin || after > PyBytes_GET_SIZE(raw)) {
        PyErr_SetString(PyExc_ValueError, "the digits are not in the head");
        return -1;
    }
    Py_INCREF(raw);
    Py_SETREF(self->raw, raw);
    self->begin = begin;
    self->after = after;
    self->length = 0;
    self->end = 0;
    return 0;
}

static void pattern_dealloc(Pattern *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->raw);
    type->tp_free((PyObject *)self);
}

/* Whether the head stands at a place of data; notes its length and end then. */
static int stands(Pattern *self, PyObject *data, Py_ssize_t at) {
    const char *raw = PyBytes_AS_STRING(self->raw);
    Py_ssize_t rest = PyBytes_GET_SIZE(self->raw) - self->after;
    if (at < 0 || PyBytes_GET_SIZE(data) - at < self->begin)
        return 0;
    const char *from = PyBytes_AS_STRING(data) + at, *stop = PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data);
    if (memcmp(from, raw, (size_t)self->begin) != 0)
        return 0;
    from += self->begin;
    long long length = 0;
    int digits = 0;
    for (; from < stop && *from >= '0' && *from <= '9'; from++) {
        if (++digits > DIGITS)
            return 0;
        length = length * 10 + (*from - '0');
    }
    if (digits == 0 || stop - from < rest || memcmp(from, raw + self->after, (size_t)rest) != 0)
        return 0;
    self->length = length;
    self->end = from + rest - PyBytes_AS_STRING(data);
    return 1;
}

static PyObject *pattern_matches(Pattern *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "matches(data, at)");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    if (at == -1 && PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(stands(self, args[0], at));
}

static PyObject *pattern_is_whole(Pattern *self, PyObject *data) {
    if (!PyBytes_Check(data)) {
        PyErr_SetString(PyExc_TypeError, "is_whole(data)");
        return NULL;
    }
    return PyBool_FromLong(stands(self, data, 0) && self->length > 0 &&
                           PyBytes_GET_SIZE(data) - self->end == self->length);
}

static PyMethodDef pattern_methods[] = {
    {"matches", (PyCFunction)(void (*)(void))pattern_matches, METH_FASTCALL, "matches(data, at) -> bool"},
    {"is_whole", (PyCFunction)pattern_is_whole, METH_O, "is_whole(data) -> bool"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef pattern_members[] = {
    {"length", T_LONGLONG, offsetof(Pattern, length), READONLY, "of the head that matched last"},
    {"end", T_PYSSIZET, offsetof(Pattern, end), READONLY, "where it ended"},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject pattern_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "router.native.wire.Pattern",
    .tp_basicsize = sizeof(Pattern),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = pattern_new,
    .tp_init = (initproc)pattern_init,
    .tp_dealloc = (destructor)pattern_dealloc,
    .tp_methods = pattern_methods,
    .tp_members = pattern_members,
};

/* Bytes put one after the other into one object. */
typedef struct {
    const char *from;
    Py_ssize_t size;
} Part;

static PyObject *joined(const Part *parts, int count) {
    Py_ssize_t size = 0;
    for (int each = 0; each < count; each++)
        size += parts[each].size;
    PyObject *result = PyBytes_FromStringAndSize(NULL, size);
    if (result == NULL)
        return NULL;
    char *to = PyBytes_AS_STRING(result);
    for (int each = 0; each < count; each++) {
        memcpy(to, parts[each].from, (size_t)parts[each].size);
        to += parts[each].size;
    }
    return result;
}

#define TEXT(literal) {(literal), sizeof(literal) - 1}

static int bytes_part(PyObject *given, Part *part) {
    if (!PyBytes_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "bytes are asked for");
        return -1;
    }
    part->from = PyBytes_AS_STRING(given);
    part->size = PyBytes_GET_SIZE(given);
    return 0;
}

/* A text of ASCII alone, as it is stored. */
static int ascii_part(PyObject *given, Part *part) {
    if (!PyUnicode_Check(given) || PyUnicode_READY(given) != 0 || !PyUnicode_IS_ASCII(given)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a text of ASCII is asked for");
        return -1;
    }
    part->from = (const char *)PyUnicode_1BYTE_DATA(given);
    part->size = PyUnicode_GET_LENGTH(given);
    return 0;
}

static PyObject *own_lines(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    char figure[40];
    Part id, name;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "own_lines(request_id, replica, matched_tokens)");
        return NULL;
    }
    if (ascii_part(args[0], &id) || bytes_part(args[1], &name))
        return NULL;
    long long matched = PyLong_AsLongLong(args[2]);
    if (matched == -1 && PyErr_Occurred())
        return NULL;
    int size = snprintf(figure, sizeof figure, "%lld\r\n", matched);
    Part parts[] = {TEXT("x-request-id: "), id, TEXT("\r\nx-warmroute-replica: "), name,
                    TEXT("\r\nx-warmroute-matched-tokens: "), {figure, size}};
    return joined(parts, 6);
}

static PyObject *answer(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Part begin, after, own, body;
    char figure[32];
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "answer(before, after, own, data, end)");
        return NULL;
    }
    if (bytes_part(args[0], &begin) || bytes_part(args[1], &after) || bytes_part(args[2], &own) ||
        bytes_part(args[3], &body))
        return NULL;
    Py_ssize_t end = PyLong_AsSsize_t(args[4]);
    if (end < 0 || end > body.size) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "the body begins outside");
        return NULL;
    }
    body.from += end;
    body.size -= end;
    int size = snprintf(figure, sizeof figure, "%lld", (long long)body.size);
    Part parts[] = {begin, {figure, size}, after, own, TEXT("\r\n"), body};
    return joined(parts, 6);
}

static PyObject *request(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Part begin, authority, lines, id, body;
    char figure[32];
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "request(begin, authority, lines, request_id, body)");
        return NULL;
    }
    if (bytes_part(args[0], &begin) || bytes_part(args[1], &authority) || bytes_part(args[2], &lines) ||
        ascii_part(args[3], &id) || bytes_part(args[4], &body))
        return NULL;
    int size = snprintf(figure, sizeof figure, "%lld", (long long)body.size);
    Part parts[] = {begin, authority, TEXT("\r\n"), lines, TEXT("x-request-id: "), id,
                    TEXT("\r\ncontent-length: "), {figure, size}, TEXT("\r\n\r\n"), body};
    return joined(parts, 10);
}

/* Another object of the same class whose slots hold what the first one's do. */
static PyObject *stamped(PyObject *module, PyObject *first) {
    PyTypeObject *type = Py_TYPE(first);
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) || type->tp_dictoffset != 0 || type->tp_itemsize != 0) {
        PyErr_SetString(PyExc_TypeError, "an object with slots alone is asked for");
        return NULL;
    }
    PyObject *made = type->tp_alloc(type, 0);
    if (made == NULL)
        return NULL;
    for (; type != NULL && type != &PyBaseObject_Type; type = type->tp_base) {
        if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && type->tp_basicsize != (Py_ssize_t)sizeof(PyObject)) {
            Py_DECREF(made);
            PyErr_SetString(PyExc_TypeError, "a base of the object's class is not Python's");
            return NULL;
        }
        for (PyMemberDef *member = type->tp_members; member != NULL && member->name != NULL; member++) {
            if (member->type != T_OBJECT_EX)
                continue;
            PyObject *held = *(PyObject **)((char *)first + member->offset);
            Py_XINCREF(held);
            *(PyObject **)((char *)made + member->offset) = held;
        }
    }
    return made;
}

#define FAST(name) #name, (PyCFunction)(void (*)(void))name, METH_FASTCALL

static PyMethodDef methods[] = {
    {"stamped", stamped, METH_O, "stamped(first) -> another object like it"},
    {FAST(own_lines), "own_lines(request_id, replica, matched_tokens) -> the router's own lines of an answer"},
    {FAST(answer), "answer(before, after, own, data, end) -> an answer as it goes to the client"},
    {FAST(request), "request(begin, authority, lines, request_id, body) -> a request as it goes to an engine"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "router.native.wire", .m_size = -1,
                                        .m_methods = methods};

PyMODINIT_FUNC PyInit_wire(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || PyType_Ready(&pattern_type) < 0 ||
        PyModule_AddObjectRef(module, "Pattern", (PyObject *)&pattern_type) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
