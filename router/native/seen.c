/* Memory of blocks that went by: the native twin of the loops in router/telemetry/seen_blocks.py, which says what they
 * are for. Filter and registers are bytearrays that Python owns; a chain is a sequence of hashes of 64 bits.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define PROBES 4
#define INDEX_BITS 14
#define REST_BITS (64 - INDEX_BITS)

/* A block's hash; on an error PyErr_Occurred tells. */
static uint64_t hash_at(PyObject *chain, Py_ssize_t place) {
    return PyLong_AsUnsignedLongLong(PySequence_Fast_GET_ITEM(chain, place));
}

static int has(const unsigned char *now, const unsigned char *before, uint64_t mask, uint64_t block) {
    int in_now = 1, in_before = 1;
    uint64_t bit = block & 0xFFFFFFFFu, step = block >> 32 | 1;
    for (int probe = 0; probe < PROBES; probe++, bit += step) {
        uint64_t at = bit & mask;
        unsigned char place = (unsigned char)(1u << (at & 7));
        in_now = in_now && (now[at >> 3] & place);
        in_before = in_before && (before[at >> 3] & place);
        if (!in_now && !in_before)
            return 0;
    }
    return 1;
}

static PyObject *note(PyObject *module, PyObject *args) {
    Py_buffer now, before;
    PyObject *given;
    unsigned long long seed;
    if (!PyArg_ParseTuple(args, "w*y*OK", &now, &before, &given, &seed))
        return NULL;
    PyObject *result = NULL, *chain = NULL;
    uint64_t mask = (uint64_t)now.len * 8 - 1;
    if (now.len == 0 || (now.len & (now.len - 1)) || before.len != now.len) {
        PyErr_SetString(PyExc_ValueError, "both generations have a power of two of bytes");
        goto end;
    }
    chain = PySequence_Fast(given, "a chain is a sequence");
    if (chain == NULL)
        goto end;
    Py_ssize_t low = 0, high = PySequence_Fast_GET_SIZE(chain), length = high;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        int found = has(now.buf, before.buf, mask, hash_at(chain, middle) ^ seed);
        if (found && middle > low)
            found = has(now.buf, before.buf, mask, hash_at(chain, middle - 1) ^ seed);
        if (found)
            low = middle + 1;
        else
            high = middle;
    }
    unsigned char *bits = now.buf;
    for (Py_ssize_t place = low; place < length; place++) {
        uint64_t block = hash_at(chain, place) ^ seed;
        uint64_t bit = block & 0xFFFFFFFFu, step = block >> 32 | 1;
        for (int probe = 0; probe < PROBES; probe++, bit += step)
            bits[(bit & mask) >> 3] |= (unsigned char)(1u << (bit & 7));
    }
    if (!PyErr_Occurred())
        result = PyLong_FromSsize_t(low);
end:
    Py_XDECREF(chain);
    PyBuffer_Release(&now);
    PyBuffer_Release(&before);
    return result;
}

static PyObject *count(PyObject *module, PyObject *args) {
    Py_buffer registers;
    PyObject *given;
    Py_ssize_t begin, end;
    if (!PyArg_ParseTuple(args, "w*Onn", &registers, &given, &begin, &end))
        return NULL;
    PyObject *chain = PySequence_Fast(given, "a chain is a sequence");
    int fits = chain != NULL && registers.len == 1 << INDEX_BITS && begin >= 0 && end <= PySequence_Fast_GET_SIZE(chain);
    if (chain != NULL && !fits)
        PyErr_SetString(PyExc_ValueError, "the places are not in the chain, or these are no registers");
    unsigned char *ranks = registers.buf;
    for (Py_ssize_t place = begin; fits && place < end; place++) {
        uint64_t block = hash_at(chain, place);
        uint64_t rest = block & (((uint64_t)1 << REST_BITS) - 1);
        unsigned char rank = 1;
        while (rank <= REST_BITS && !(rest >> (REST_BITS - rank)))
            rank++;
        if (ranks[block >> REST_BITS] < rank)
            ranks[block >> REST_BITS] = rank;
    }
    Py_XDECREF(chain);
    PyBuffer_Release(&registers);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *join(PyObject *module, PyObject *args) {
    Py_buffer registers, other;
    if (!PyArg_ParseTuple(args, "w*y*", &registers, &other))
        return NULL;
    int fits = registers.len == other.len;
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "both have as many registers");
    unsigned char *ranks = registers.buf;
    const unsigned char *others = other.buf;
    for (Py_ssize_t place = 0; fits && place < registers.len; place++)
        if (ranks[place] < others[place])
            ranks[place] = others[place];
    PyBuffer_Release(&registers);
    PyBuffer_Release(&other);
    if (!fits)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"note", note, METH_VARARGS, "note(now, before, chain, seed) -> how many of the first blocks went by before"},
    {"count", count, METH_VARARGS, "count(registers, chain, begin, end)"},
    {"join", join, METH_VARARGS, "join(registers, other): the greater of each pair"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "router.native.seen", .m_size = 0,
                                        .m_methods = methods};

PyMODINIT_FUNC PyInit_seen(void) { return PyModule_Create(&definition); }
