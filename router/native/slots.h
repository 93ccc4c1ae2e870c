/* Attributes of Python objects whose classes have `__slots__`, read where they lie: a look-up by name takes ten times as
 * long, and there may be hundreds of objects. */
#ifndef WARMROUTE_SLOTS_H
#define WARMROUTE_SLOTS_H

#include <Python.h>
#include <stddef.h>
#include <structmember.h>

/* Where a class keeps some of its attributes. */
typedef struct {
    PyTypeObject *type; /* owned */
    Py_ssize_t offsets[12];
} Slots;

/* Find a class's attributes. Returns 0 where one of them is no slot of that very class (mypyc makes properties). */
static int slots_find(Slots *slots, PyObject *type, const char *const *names, int count) {
    if (!PyType_Check(type))
        return 0;
    for (int i = 0; i < count; i++) {
        PyObject *found = PyDict_GetItemString(((PyTypeObject *)type)->tp_dict, names[i]);
        if (found == NULL || !Py_IS_TYPE(found, &PyMemberDescr_Type))
            return 0;
        PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        if (member->type != T_OBJECT_EX)
            return 0;
        slots->offsets[i] = member->offset;
    }
    slots->type = (PyTypeObject *)Py_NewRef(type);
    return 1;
}

/* An attribute, borrowed; NULL without an exception where it is not set or the object is of another class. */
static inline PyObject *slot_of(const Slots *slots, PyObject *object, int number) {
    if (!Py_IS_TYPE(object, slots->type))
        return NULL;
    return *(PyObject **)((char *)object + slots->offsets[number]);
}

/* A number from Python; returns 0 without an exception where it is none. */
static inline int as_double(PyObject *given, double *number) {
    if (given == NULL)
        return 0;
    if (PyFloat_CheckExact(given)) {
        *number = PyFloat_AS_DOUBLE(given);
        return 1;
    }
    if (!PyLong_CheckExact(given))
        return 0;
    *number = PyLong_AsDouble(given);
    if (*number == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return 1;
}

/* A count from Python; returns 0 without an exception where it is none, or too large. */
static inline int as_count(PyObject *given, int32_t *number) {
    if (given == NULL || !PyLong_CheckExact(given))
        return 0;
    int overflow;
    long found = PyLong_AsLongAndOverflow(given, &overflow);
    if (overflow || found < INT32_MIN || found > INT32_MAX)
        return 0;
    *number = (int32_t)found;
    return 1;
}

#endif
