/* router.native.weighing: what a decision under policy `cost` works out for each candidate, in one call.
 *
 * The twin of `_loads` and `_speeds` in router/survey.py, of router/scheduling/scorers.py and of `LowestCost` in
 * router/scheduling/pickers.py, which say what each figure means; sums are made in the same order, so that the figures
 * are the same to the last bit. Whatever it meets that is not as usual it leaves to them: it returns None.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "choosing.h"
#include "slots.h"

#define ALIKE 1.25
#define FIRST_SHARE 0.2
#define FRESH_S 5.0
#define FEW 32 /* candidates whose figures find room on the stack */

enum { U_IN_FLIGHT, U_LOAD, U_NUM_BLOCKS, U_SIBLING_REQUESTS, U_SIBLING_TOKENS, U_PEER_REQUESTS, U_PEER_TOKENS,
       U_FOREIGN, U_NEW_SINCE, U_PLACED_AT_REPORT, U_ALL };
static const char *const UNIT_SLOTS[U_ALL] = {"in_flight", "load", "num_blocks", "sibling_requests", "sibling_tokens",
    "peer_requests", "peer_tokens", "foreign_requests", "new_since_s", "placed_at_report_tokens"};
enum { L_HEAD, L_QUEUED, L_SINCE, L_OTHERS, L_SPEED, L_REQUESTS, L_CONTEXT, L_PLACED, L_ALL };
static const char *const LOAD_SLOTS[L_ALL] = {"_head", "_queued_tokens", "_computing_since_s", "_others_head_s",
    "prefill_tokens_per_s", "requests", "context_tokens", "placed_tokens"};
enum { R_PLACED, R_OBSERVABLE, R_MOST_MELTED, R_UNCACHED, R_ALL };
static const char *const RESERVATION_SLOTS[R_ALL] = {"placed_s", "observable", "most_melted_tokens", "uncached_tokens"};
enum { E_AT, E_KV_USAGE, E_ALL };
static const char *const ENGINE_SLOTS[E_ALL] = {"at_s", "kv_usage"};
enum { P_DRAINING, P_DOWN, P_EJECTED, P_HELD, P_ALL };
static const char *const REPLICA_SLOTS[P_ALL] = {"draining", "down_reason", "ejected_until_s", "held_until_s"};

static Slots unit_slots, load_slots, reservation_slots, engine_slots, replica_slots;
static PyObject *backlog_name;

enum { W_RUNNING, W_HELD, W_BASE, W_PER_S, W_MAX, W_CPU, W_DISK, W_ALL };

/* `UnitLoad.backlog_tokens`, by Python where that would change something. Returns 0 where it can't be told; with an
 * exception set where Python raised one. */
static int backlog_of(PyObject *load, PyObject *now, double now_s, double *backlog) {
    PyObject *head = slot_of(&load_slots, load, L_HEAD);
    double placed_s, others_s, since_s, speed, queued, most;
    if (head == NULL)
        return 0;
    if (head == Py_None)
        return *backlog = 0.0, 1;
    PyObject *observable = slot_of(&reservation_slots, head, R_OBSERVABLE);
    if (observable == NULL || !as_double(slot_of(&reservation_slots, head, R_PLACED), &placed_s) ||
        !as_double(slot_of(&reservation_slots, head, R_MOST_MELTED), &most) ||
        !as_double(slot_of(&load_slots, load, L_OTHERS), &others_s) ||
        !as_double(slot_of(&load_slots, load, L_SINCE), &since_s) ||
        !as_double(slot_of(&load_slots, load, L_SPEED), &speed) ||
        !as_double(slot_of(&load_slots, load, L_QUEUED), &queued))
        return 0;
    int changes = others_s < placed_s;
    if (!changes && observable != Py_True) {
        double uncached;
        if (observable != Py_False || !as_double(slot_of(&reservation_slots, head, R_UNCACHED), &uncached) ||
            speed == 0.0)
            return 0;
        changes = !(since_s + uncached / speed > now_s);
    }
    if (changes) {
        Py_INCREF(load);
        PyObject *told = PyObject_CallMethodOneArg(load, backlog_name, now);
        Py_DECREF(load);
        int is_good = as_double(told, backlog);
        Py_XDECREF(told);
        return is_good;
    }
    double melted = (now_s - since_s) * speed;
    *backlog = melted > most ? queued - most : melted > 0.0 ? queued - melted : queued;
    return 1;
}

/* One unit's figures. Returns as `backlog_of`. */
static int row_of(Row *row, PyObject *unit, PyObject *now, double now_s, double ramp_s, double block_size) {
    double sibling, peer, at_s = 0.0, kv_usage = 0.0;
    int32_t requests, siblings, peers, foreign;
    PyObject *load = slot_of(&unit_slots, unit, U_IN_FLIGHT);
    if (load == NULL || !backlog_of(load, now, now_s, &row->backlog))
        return 0;
    /* Python may have run: all else is looked at after that. */
    load = slot_of(&unit_slots, unit, U_IN_FLIGHT);
    PyObject *engine = slot_of(&unit_slots, unit, U_LOAD), *blocks = slot_of(&unit_slots, unit, U_NUM_BLOCKS);
    PyObject *since = slot_of(&unit_slots, unit, U_NEW_SINCE);
    if (load == NULL || engine == NULL || since == NULL || blocks == NULL ||
        !as_double(slot_of(&unit_slots, unit, U_SIBLING_TOKENS), &sibling) ||
        !as_double(slot_of(&unit_slots, unit, U_PEER_TOKENS), &peer) ||
        !as_double(slot_of(&load_slots, load, L_SPEED), &row->speed) ||
        !as_count(slot_of(&load_slots, load, L_REQUESTS), &requests) ||
        !as_count(slot_of(&unit_slots, unit, U_SIBLING_REQUESTS), &siblings) ||
        !as_count(slot_of(&unit_slots, unit, U_PEER_REQUESTS), &peers) ||
        !as_count(slot_of(&unit_slots, unit, U_FOREIGN), &foreign))
        return 0;
    row->backlog = row->backlog + sibling + peer;
    if (engine != Py_None && (!as_double(slot_of(&engine_slots, engine, E_AT), &at_s) ||
                              !as_double(slot_of(&engine_slots, engine, E_KV_USAGE), &kv_usage)))
        return 0;
    int is_fresh = engine != Py_None && now_s - at_s <= FRESH_S;
    int64_t running = (int64_t)requests + siblings + peers + (is_fresh ? foreign : 0);
    if (running < INT32_MIN || running > INT32_MAX)
        return 0;
    row->running = (int32_t)running;
    if (!is_fresh || blocks == Py_None || block_size == 0.0) {
        if (!as_double(slot_of(&load_slots, load, L_CONTEXT), &row->held_tokens))
            return 0;
    } else {
        double many, placed, before;
        if (!as_double(blocks, &many) || !as_double(slot_of(&load_slots, load, L_PLACED), &placed) ||
            !as_double(slot_of(&unit_slots, unit, U_PLACED_AT_REPORT), &before))
            return 0;
        row->held_tokens = kv_usage * many * block_size + placed - before;
    }
    if (since != Py_None) {
        double joined_s;
        if (!as_double(since, &joined_s))
            return 0;
        if (now_s - joined_s < ramp_s)
            row->speed *= FIRST_SHARE + (1 - FIRST_SHARE) * (now_s - joined_s) / ramp_s;
    }
    return row->speed > 0.0;
}

/* Blocks of each candidate from a list of ints; None: 0 of all. Returns 0 where it is no such list. */
static int take_blocks(PyObject *given, Row *rows, Py_ssize_t count, size_t offset) {
    if (given != Py_None && (!PyList_CheckExact(given) || PyList_GET_SIZE(given) != count))
        return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        int32_t *place = (int32_t *)((char *)&rows[i] + offset);
        *place = 0;
        if (given != Py_None && !as_count(PyList_GET_ITEM(given, i), place))
            return 0;
    }
    return 1;
}

/* Give each candidate its cost. Returns 0 where one of them has none that can be compared: `pick` counts on finding the
 * lowest cost and the least backlog among them again. */
static int score(Row *rows, Py_ssize_t count, const double weights[W_ALL], const double *shares, double prompt,
                 double block_size, int has_cpu, int has_disk, double *told_price) {
    double backlog_s = 0.0, speeds = 0.0, slowest = rows[0].speed, fastest = rows[0].speed;
    for (Py_ssize_t i = 0; i < count; i++) {
        backlog_s += rows[i].backlog / rows[i].speed;
        speeds += rows[i].speed;
        slowest = rows[i].speed < slowest ? rows[i].speed : slowest;
        fastest = rows[i].speed > fastest ? rows[i].speed : fastest;
    }
    double price = weights[W_BASE] + weights[W_PER_S] * (backlog_s / (double)count);
    price = price > weights[W_MAX] ? weights[W_MAX] : price;
    price = price > weights[W_BASE] ? price : weights[W_BASE];
    double mean = speeds / (double)count, slow = mean / ALIKE, fast = mean * ALIKE;
    int is_alike = slow <= slowest && fastest <= fast;
    for (Py_ssize_t i = 0; i < count; i++) {
        Row *row = &rows[i];
        double usable = (double)row->expected * block_size;
        if (has_cpu)
            usable = usable - (double)row->cpu * block_size * (1 - weights[W_CPU]);
        if (has_disk)
            usable = usable - (double)row->disk * block_size * (1 - weights[W_DISK]);
        double queue = row->backlog;
        double recompute = price * (prompt - (shares == NULL ? usable : shares[i] * usable));
        if (!is_alike) {
            double pace = slow <= row->speed && row->speed <= fast ? 1.0 : mean / row->speed;
            queue = pace * queue;
            recompute = pace * recompute;
        }
        double held = weights[W_HELD] != 0.0 ? weights[W_HELD] * row->held_tokens : 0.0;
        row->cost = queue + recompute + weights[W_RUNNING] * (double)row->running + held;
        if (!isfinite(row->cost) || !isfinite(row->backlog))
            return 0;
    }
    *told_price = price;
    return 1;
}

/* What the decision keeps of the candidates: a column for each figure. */
static PyObject *packed(const Row *rows, Py_ssize_t count, int has_tiers) {
    Py_ssize_t size = count * (3 * (Py_ssize_t)sizeof(double) + (has_tiers ? 5 : 3) * (Py_ssize_t)sizeof(int32_t));
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, size);
    if (bytes == NULL)
        return NULL;
    double *figures = (double *)PyBytes_AS_STRING(bytes);
    int32_t *counts = (int32_t *)(figures + 3 * count);
    for (Py_ssize_t i = 0; i < count; i++) {
        figures[i] = rows[i].backlog;
        figures[count + i] = rows[i].speed;
        figures[2 * count + i] = rows[i].held_tokens;
        counts[i] = rows[i].held;
        counts[count + i] = rows[i].expected;
        counts[2 * count + i] = rows[i].running;
        if (has_tiers) {
            counts[3 * count + i] = rows[i].cpu;
            counts[4 * count + i] = rows[i].disk;
        }
    }
    return bytes;
}

enum { A_UNITS, A_NAMES, A_NOW, A_RAMP, A_SHARES, A_BLOCK_SIZE, A_PROMPT, A_HELD, A_EXPECTED, A_CPU, A_DISK, A_WEIGHTS,
       A_TIE, A_OWNER, A_ALL };

static PyObject *weigh(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    double now_s, ramp_s, block_size, prompt, tie_tokens, weights[W_ALL];
    if (given != A_ALL) {
        PyErr_SetString(PyExc_TypeError, "other arguments are wanted");
        return NULL;
    }
    PyObject *units = args[A_UNITS], *names = args[A_NAMES], *shares = args[A_SHARES];
    if (unit_slots.type == NULL || !PyList_CheckExact(units) || !PyList_CheckExact(names) ||
        PyList_GET_SIZE(units) == 0 || PyList_GET_SIZE(names) != PyList_GET_SIZE(units) ||
        !as_double(args[A_NOW], &now_s) || !as_double(args[A_RAMP], &ramp_s) ||
        !as_double(args[A_BLOCK_SIZE], &block_size) || !as_double(args[A_PROMPT], &prompt) ||
        !as_double(args[A_TIE], &tie_tokens) || !(tie_tokens >= 0.0) || !PyTuple_CheckExact(args[A_WEIGHTS]) ||
        PyTuple_GET_SIZE(args[A_WEIGHTS]) != W_ALL)
        Py_RETURN_NONE;
    for (int i = 0; i < W_ALL; i++)
        if (!as_double(PyTuple_GET_ITEM(args[A_WEIGHTS], i), &weights[i]))
            Py_RETURN_NONE;
    Py_ssize_t count = PyList_GET_SIZE(units);
    Py_buffer view = {0};
    if (shares != Py_None) {
        if (PyObject_GetBuffer(shares, &view, PyBUF_FORMAT) < 0)
            return NULL;
        if (view.len != count * (Py_ssize_t)sizeof(double) || view.format == NULL || strcmp(view.format, "d") != 0) {
            PyBuffer_Release(&view);
            Py_RETURN_NONE;
        }
    }
    Row few[FEW], *rows = count <= FEW ? few : PyMem_Malloc(count * sizeof *rows);
    Py_ssize_t few_tied[FEW], *tied = count <= FEW ? few_tied : PyMem_Malloc(count * sizeof *tied);
    PyObject *result = NULL;
    if (rows == NULL || tied == NULL) {
        PyErr_NoMemory();
    } else {
        int is_good = 1, has_cpu = args[A_CPU] != Py_None, has_disk = args[A_DISK] != Py_None;
        for (Py_ssize_t i = 0; is_good && i < count; i++) {
            PyObject *unit = Py_NewRef(PyList_GET_ITEM(units, i));
            is_good = row_of(&rows[i], unit, args[A_NOW], now_s, ramp_s, block_size);
            Py_DECREF(unit);
            /* Python may have run. */
            is_good = is_good && PyList_GET_SIZE(units) == count && PyList_GET_SIZE(names) == count;
        }
        is_good = is_good && take_blocks(args[A_HELD], rows, count, offsetof(Row, held)) &&
                  take_blocks(args[A_EXPECTED], rows, count, offsetof(Row, expected)) &&
                  take_blocks(args[A_CPU], rows, count, offsetof(Row, cpu)) &&
                  take_blocks(args[A_DISK], rows, count, offsetof(Row, disk));
        double price;
        if (is_good && score(rows, count, weights, view.buf, prompt, block_size, has_cpu, has_disk, &price)) {
            int32_t longest = 0;
            for (Py_ssize_t i = 0; i < count; i++)
                longest = rows[i].held > longest ? rows[i].held : longest;
            PyObject *reason = NULL;
            PyObject *chosen = choice_of(rows, count, tie_tokens, names, args[A_OWNER], tied, &reason);
            PyObject *figures = packed(rows, count, has_cpu || has_disk);
            if (chosen != NULL && figures != NULL)
                result = Py_BuildValue("(OOdOi)", chosen, reason, price, figures, (int)longest);
            Py_XDECREF(chosen);
            Py_XDECREF(figures);
        } else if (!PyErr_Occurred()) {
            result = Py_NewRef(Py_None);
        }
    }
    if (rows != few)
        PyMem_Free(rows);
    if (tied != few_tied)
        PyMem_Free(tied);
    if (shares != Py_None)
        PyBuffer_Release(&view);
    return result;
}

static PyObject *are_untroubled(PyObject *module, PyObject *replicas) {
    if (replica_slots.type == NULL || !PyList_CheckExact(replicas))
        Py_RETURN_FALSE;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(replicas); i++) {
        PyObject *replica = PyList_GET_ITEM(replicas, i);
        if (slot_of(&replica_slots, replica, P_DRAINING) != Py_False)
            Py_RETURN_FALSE;
        for (int slot = P_DOWN; slot < P_ALL; slot++)
            if (slot_of(&replica_slots, replica, slot) != Py_None)
                Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

static PyObject *bind(PyObject *module, PyObject *args) {
    PyObject *unit, *load, *reservation, *engine, *replica;
    if (!PyArg_ParseTuple(args, "OOOOO", &unit, &load, &reservation, &engine, &replica))
        return NULL;
    return PyBool_FromLong(slots_find(&replica_slots, replica, REPLICA_SLOTS, P_ALL) &&
                           slots_find(&engine_slots, engine, ENGINE_SLOTS, E_ALL) &&
                           slots_find(&reservation_slots, reservation, RESERVATION_SLOTS, R_ALL) &&
                           slots_find(&load_slots, load, LOAD_SLOTS, L_ALL) &&
                           slots_find(&unit_slots, unit, UNIT_SLOTS, U_ALL));
}

static PyMethodDef functions[] = {
    {"bind", bind, METH_VARARGS, "bind(Unit, UnitLoad, Reservation, EngineLoad, Replica): whether their slots are found."},
    {"are_untroubled", are_untroubled, METH_O, "are_untroubled(replicas): whether all can only be READY."},
    {"weigh", (PyCFunction)(void (*)(void))weigh, METH_FASTCALL,
     "weigh(units, names, now_s, ramp_s, shares, block_size, prompt_tokens, held, expected, cpu, disk, weights, tie_tokens, "
     "owner): ((place, lead) or a list of such, reason or None, price, figures, longest match in blocks), or None."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "weighing", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit_weighing(void) {
    backlog_name = PyUnicode_InternFromString("backlog_tokens");
    for (int i = 0; i < REASON_ALL; i++)
        if ((reasons[i] = PyUnicode_InternFromString(REASON_WORDS[i])) == NULL)
            return NULL;
    return backlog_name == NULL ? NULL : PyModule_Create(&module);
}
