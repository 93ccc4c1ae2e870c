/* One layer of the index: for each block the set of columns (units) that hold it. */
#ifndef WARMROUTE_HOLDER_TABLE_H
#define WARMROUTE_HOLDER_TABLE_H

#include "block_hashes.h"
#include "block_map.h"
#include "column_sets.h"

#define MAX_COLUMNS (1 << 20)

typedef struct {
    PyObject_HEAD
    BlockMap map;
    ColumnSets sets;
} HolderTable;

/* How a column is put into sets, or taken out, or several are: remembered for one call, since the blocks of a batch
 * nearly all come from one set and go into one. */
typedef struct {
    ColumnSets *sets;
    uint64_t *bits; /* `words` of scratch */
    uint32_t from, to;
    int is_known;
} Move;

static int move_begin(Move *move, ColumnSets *sets) {
    *move = (Move){sets, PyMem_Malloc((sets->words + 1) * sizeof(uint64_t)), NO_SET, NO_SET, 0};
    if (move->bits == NULL)
        PyErr_NoMemory();
    return move->bits != NULL;
}

static void move_end(Move *move) {
    PyMem_Free(move->bits);
}

/* The set that a block of set `from` goes to, which is `move->bits` unless it is known, counted for it. Returns NO_SET
 * where nothing is left or, with an exception set, without memory. A `to` can't lose its blocks during the call: who
 * is in it already is not moved. */
static inline uint32_t moved_to(Move *move, uint32_t from) {
    uint32_t any = 0;
    for (uint32_t i = 0; i < move->sets->words && !any; i++)
        any = move->bits[i] != 0;
    uint32_t to = any ? sets_take(move->sets, move->bits) : NO_SET;
    if (any && to == NO_SET)
        PyErr_NoMemory();
    move->from = from;
    move->to = to;
    move->is_known = 1;
    return to;
}

static inline uint32_t known_move(Move *move) {
    if (move->to != NO_SET)
        move->sets->blocks[move->to]++;
    return move->to;
}

static inline uint32_t with_column(Move *move, uint32_t from, uint32_t column) {
    if (move->is_known && move->from == from)
        return known_move(move);
    memcpy(move->bits, set_bits(move->sets, from), move->sets->words * sizeof(uint64_t));
    move->bits[column / 64] |= (uint64_t)1 << (column % 64);
    return moved_to(move, from);
}

static inline uint32_t without_columns(Move *move, uint32_t from, const uint64_t *columns) {
    if (move->is_known && move->from == from)
        return known_move(move);
    for (uint32_t i = 0; i < move->sets->words; i++)
        move->bits[i] = set_bits(move->sets, from)[i] & ~columns[i];
    return moved_to(move, from);
}

/* A column holds these blocks. Returns for how many that is new; -1 with an exception set. */
static Py_ssize_t table_add(HolderTable *table, uint32_t column, BlockHashes *blocks) {
    Py_ssize_t added = 0;
    uint64_t chunk[CHUNK];
    Move move;
    if (!sets_widen(&table->sets, column)) {
        PyErr_NoMemory();
        return -1;
    }
    if (!move_begin(&move, &table->sets))
        return -1;
    int count;
    while ((count = hashes_next(blocks, chunk)) > 0) {
        for (int i = 0; i < count; i++)
            map_prefetch(&table->map, chunk[i]);
        for (int i = 0; i < count; i++) {
            Entry *entry = map_entry(&table->map, chunk[i]);
            if (entry == NULL) {
                PyErr_NoMemory();
                count = -1;
                break;
            }
            uint32_t from = entry->set;
            if (set_has(&table->sets, from, column))
                continue;
            uint32_t to = with_column(&move, from, column);
            if (to == NO_SET) {
                count = -1;
                break;
            }
            if (from == NO_SET) {
                map_keep(&table->map, entry, chunk[i], to);
            } else {
                entry->set = to;
                sets_leave(&table->sets, from);
            }
            added++;
        }
        if (count < 0)
            break;
    }
    move_end(&move);
    return count < 0 ? -1 : added;
}

/* A column no longer holds these blocks. Returns how many it held; -1 with an exception set. */
static Py_ssize_t table_discard(HolderTable *table, uint32_t column, BlockHashes *blocks) {
    Py_ssize_t removed = 0;
    uint64_t chunk[CHUNK];
    Move move;
    if (column / 64 >= table->sets.words)
        return 0;
    uint64_t *columns = PyMem_Calloc(table->sets.words, sizeof *columns);
    if (columns == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    columns[column / 64] = (uint64_t)1 << (column % 64);
    if (!move_begin(&move, &table->sets)) {
        PyMem_Free(columns);
        return -1;
    }
    int count;
    while ((count = hashes_next(blocks, chunk)) > 0) {
        for (int i = 0; i < count; i++)
            map_prefetch(&table->map, chunk[i]);
        for (int i = 0; i < count; i++) {
            Entry *entry = map_find(&table->map, chunk[i]);
            if (entry == NULL || !set_has(&table->sets, entry->set, column))
                continue;
            uint32_t from = entry->set, to = without_columns(&move, from, columns);
            if (to != NO_SET) {
                entry->set = to;
            } else if (PyErr_Occurred()) {
                count = -1;
                break;
            } else {
                map_remove(&table->map, entry);
            }
            sets_leave(&table->sets, from);
            removed++;
        }
        if (count < 0)
            break;
    }
    move_end(&move);
    PyMem_Free(columns);
    return count < 0 ? -1 : removed;
}

/* Take columns out of one part. Returns how many blocks were looked at; -1 with an exception set. */
static Py_ssize_t table_sweep_part(HolderTable *table, int number, const uint64_t *columns) {
    Part *part = &table->map.parts[number];
    ColumnSets *sets = &table->sets;
    Py_ssize_t looked_at = part->used;
    Move move;
    if (!move_begin(&move, sets))
        return -1;
    for (uint32_t place = 0; place < part->capacity;) {
        uint32_t from = part->entries[place].set, is_dead = 0;
        for (uint32_t i = 0; i < sets->words && !is_dead; i++)
            is_dead = (set_bits(sets, from)[i] & columns[i]) != 0;
        if (!is_dead) {
            place++;
            continue;
        }
        uint32_t to = without_columns(&move, from, columns);
        if (to != NO_SET) {
            part->entries[place++].set = to;
        } else if (PyErr_Occurred()) {
            looked_at = -1;
            break;
        } else {
            part_remove(&table->map, part, place); /* and look at the entry that came here */
            table->map.size--;
        }
        sets_leave(sets, from);
    }
    move_end(&move);
    part_shrink(&table->map, part);
    return looked_at;
}

#endif
