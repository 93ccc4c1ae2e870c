/* Which of the candidates that were weighed is chosen: the twin of `LowestCost` in router/scheduling/pickers.py. */
#ifndef WARMROUTE_CHOOSING_H
#define WARMROUTE_CHOOSING_H

#include <Python.h>
#include <stdint.h>

enum { REASON_ONLY, REASON_COST, REASON_PREFIX, REASON_OWNER, REASON_LEAST, REASON_ALL };
static const char *const REASON_WORDS[REASON_ALL] = {"only", "cost", "prefix", "owner", "least-loaded"};
static PyObject *reasons[REASON_ALL];

/* Three figures, then what is worked out from them, a row for each candidate. */
typedef struct {
    double backlog, speed, held_tokens, cost;
    int32_t held, expected, running, cpu, disk;
} Row;

/* Whether a name is the owner's. */
static int is_name(PyObject *names, Py_ssize_t place, PyObject *owner) {
    PyObject *name = PyList_GET_ITEM(names, place);
    return name == owner || (PyUnicode_CheckExact(name) && PyUnicode_CheckExact(owner) &&
                             PyUnicode_Compare(name, owner) == 0);
}

/* The winner's place; -1 where chance decides among those that are left in `tied`. */
static Py_ssize_t pick(const Row *rows, Py_ssize_t count, double most, PyObject *names, PyObject *owner,
                       Py_ssize_t *tied, Py_ssize_t *left, int *reason) {
    Py_ssize_t many = 0, kept = 0;
    int32_t longest = INT32_MIN;
    for (Py_ssize_t i = 0; i < count; i++)
        if (rows[i].cost <= most) {
            tied[many++] = i;
            longest = rows[i].expected > longest ? rows[i].expected : longest;
        }
    *reason = REASON_COST;
    if (many == 1)
        return tied[0];
    for (Py_ssize_t i = 0; i < many; i++)
        if (rows[tied[i]].expected == longest)
            tied[kept++] = tied[i];
    *reason = REASON_PREFIX;
    if (kept == 1)
        return tied[0];
    *reason = REASON_OWNER;
    for (Py_ssize_t i = 0; owner != Py_None && i < kept; i++)
        if (is_name(names, tied[i], owner))
            return tied[i];
    const Row *least = &rows[tied[0]];
    for (Py_ssize_t i = 1; i < kept; i++) {
        const Row *row = &rows[tied[i]];
        if (row->backlog < least->backlog || (row->backlog == least->backlog && row->running < least->running))
            least = row;
    }
    many = 0;
    for (Py_ssize_t i = 0; i < kept; i++)
        if (rows[tied[i]].backlog == least->backlog && rows[tied[i]].running == least->running)
            tied[many++] = tied[i];
    *reason = REASON_LEAST;
    *left = many;
    return many == 1 ? tied[0] : -1;
}

/* By how much a candidate is cheaper than the cheapest other one. */
static double lead_of(const Row *rows, Py_ssize_t count, Py_ssize_t place) {
    double least = 0.0;
    int is_first = 1;
    for (Py_ssize_t i = 0; i < count; i++)
        if (i != place && (is_first || rows[i].cost < least)) {
            least = rows[i].cost;
            is_first = 0;
        }
    return is_first ? 0.0 : -rows[place].cost + least;
}

/* (winner's place, lead, reason), or a list of (place, lead) for chance to choose from. */
static PyObject *choice_of(const Row *rows, Py_ssize_t count, double tie_tokens, PyObject *names, PyObject *owner,
                           Py_ssize_t *tied, PyObject **reason) {
    if (count == 1) {
        *reason = reasons[REASON_ONLY];
        return Py_BuildValue("(nd)", (Py_ssize_t)0, 0.0);
    }
    double most = rows[0].cost;
    for (Py_ssize_t i = 1; i < count; i++)
        most = rows[i].cost < most ? rows[i].cost : most;
    int why;
    Py_ssize_t left = 0, place = pick(rows, count, most + tie_tokens, names, owner, tied, &left, &why);
    *reason = reasons[why];
    if (place >= 0)
        return Py_BuildValue("(nd)", place, lead_of(rows, count, place));
    *reason = Py_None;
    PyObject *lightest = PyList_New(left);
    for (Py_ssize_t i = 0; lightest != NULL && i < left; i++) {
        PyObject *each = Py_BuildValue("(nd)", tied[i], lead_of(rows, count, tied[i]));
        if (each == NULL)
            Py_CLEAR(lightest);
        else
            PyList_SET_ITEM(lightest, i, each);
    }
    return lightest;
}

#endif
