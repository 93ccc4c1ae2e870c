/* Block hashes as Python gives them: an array of unsigned 64-bit words is read where it lies, a sequence of ints is
 * converted chunk by chunk, so that whoever stops early has not paid for the rest.
 */
#ifndef WARMROUTE_BLOCK_HASHES_H
#define WARMROUTE_BLOCK_HASHES_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

#define CHUNK 32 /* hashes converted, and looked for in memory, at once */

typedef struct {
    PyObject *items; /* a list or tuple; NULL where the words are read from `view` */
    Py_buffer view;
    Py_ssize_t count, next;
} BlockHashes;

/* Returns 0 with an exception set. */
static int hashes_open(BlockHashes *hashes, PyObject *given) {
    hashes->items = NULL;
    hashes->next = 0;
    if (!PyList_Check(given) && PyObject_CheckBuffer(given)) {
        if (PyObject_GetBuffer(given, &hashes->view, PyBUF_FORMAT) < 0)
            return 0;
        if (hashes->view.itemsize != 8 || hashes->view.format == NULL || strcmp(hashes->view.format, "Q") != 0) {
            PyBuffer_Release(&hashes->view);
            PyErr_SetString(PyExc_TypeError, "block hashes are ints, or an array of type code 'Q'");
            return 0;
        }
        hashes->count = hashes->view.len / 8;
        return 1;
    }
    hashes->items = PySequence_Fast(given, "block hashes are an iterable of ints");
    if (hashes->items == NULL)
        return 0;
    hashes->count = PySequence_Fast_GET_SIZE(hashes->items);
    return 1;
}

static void hashes_close(BlockHashes *hashes) {
    if (hashes->items != NULL)
        Py_DECREF(hashes->items);
    else
        PyBuffer_Release(&hashes->view);
}

/* The lower 64 bits of a Python int. Nothing but an int is taken: no other code can run while a table is changed.
 * Returns 0 with an exception set. */
static inline int hash_of(PyObject *item, uint64_t *hash) {
    if (!PyLong_Check(item)) {
        PyErr_Format(PyExc_TypeError, "a block hash is an int, not %.100s", Py_TYPE(item)->tp_name);
        return 0;
    }
    *hash = PyLong_AsUnsignedLongLongMask(item);
    return 1;
}

/* The next up to CHUNK hashes. Returns how many; 0 at the end, -1 with an exception set. */
static int hashes_next(BlockHashes *hashes, uint64_t chunk[CHUNK]) {
    Py_ssize_t left = hashes->count - hashes->next;
    int count = left < CHUNK ? (int)left : CHUNK;
    if (hashes->items == NULL) {
        memcpy(chunk, (const uint64_t *)hashes->view.buf + hashes->next, count * sizeof *chunk);
    } else {
        for (int i = 0; i < count; i++) {
            if (left - i > CHUNK) /* ints of a prompt that was read a while ago are far from the processor */
                __builtin_prefetch(PySequence_Fast_GET_ITEM(hashes->items, hashes->next + i + CHUNK));
            if (!hash_of(PySequence_Fast_GET_ITEM(hashes->items, hashes->next + i), &chunk[i]))
                return -1;
        }
    }
    hashes->next += count;
    return count;
}

#endif
