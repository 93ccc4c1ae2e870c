/* How far columns go on beyond what they hold, where a table has only some blocks of a chain, at known places. */
#ifndef WARMROUTE_EXTENDED_H
#define WARMROUTE_EXTENDED_H

#include "holder_table.h"

/* The first of `count` rising places that is `least` or more. */
static inline Py_ssize_t first_place(const int32_t *places, Py_ssize_t count, int64_t least) {
    Py_ssize_t first = 0, last = count;
    while (first < last) {
        Py_ssize_t middle = first + (last - first) / 2;
        if (places[middle] < least)
            first = middle + 1;
        else
            last = middle;
    }
    return first;
}

/* Look up the sampled blocks of a chain: the set of each, NO_SET where the table has it not. Returns how many it has;
 * -1 with an exception set. */
static Py_ssize_t sampled_sets(const HolderTable *table, PyObject *chain, const int32_t *places, Py_ssize_t samples,
                               uint32_t *sets) {
    Py_ssize_t found = 0;
    uint64_t chunk[CHUNK];
    for (Py_ssize_t start = 0; start < samples; start += CHUNK) {
        int count = samples - start < CHUNK ? (int)(samples - start) : CHUNK;
        for (int i = 0; i < count; i++) {
            int32_t place = places[start + i];
            if (place < 0 || place >= PySequence_Fast_GET_SIZE(chain)) {
                PyErr_SetString(PyExc_ValueError, "places are from 0, rising");
                return -1;
            }
            if (!hash_of(PySequence_Fast_GET_ITEM(chain, place), &chunk[i]))
                return -1;
            map_prefetch(&table->map, chunk[i]);
        }
        for (int i = 0; i < count; i++) {
            const Entry *entry = map_find((BlockMap *)&table->map, chunk[i]);
            sets[start + i] = entry == NULL ? NO_SET : entry->set;
            found += entry != NULL;
        }
    }
    return found;
}

/* How many blocks a column has that holds `held` for certain. */
static inline int64_t extended_by(const ColumnSets *sets, const uint32_t *sampled, const int32_t *places,
                                  Py_ssize_t samples, uint32_t column, int64_t held) {
    for (Py_ssize_t i = first_place(places, samples, held); i < samples && set_has(sets, sampled[i], column); i++)
        held = (int64_t)places[i] + 1;
    return held;
}

#endif
