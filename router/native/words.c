/* Divides ASCII text into words as byte-level BPE tokenizers do, and looks up the ids of those that are known.
 *
 * The twin of `router/request/encoders/word_search.py`, which says what a word is: there the same is written as regular
 * expressions. The expressions' alternatives are tried here in the same order, and every character belongs to a word.
 *
 * Words and ids are kept in one arena; a table of open addresses over a keyed hash leads to them. Texts come from
 * clients, so the key is random. All work is done with the interpreter's lock held: the caller gives slices.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { LETTER = 1, DIGIT = 2, SPACE = 4, LINE = 8, OTHER = 16 };
enum { GPT2, ONE_DIGIT, THREE_DIGITS, PATTERNS };
#define LONGEST_KEPT 64 /* characters of a word, as MAX_WORD_CHARS */

static unsigned char class_of[128];

static int ascii_lower(int c) { return class_of[c] == LETTER ? c | 32 : c; }

static void fill_classes(void)
{
    memset(class_of, OTHER, sizeof class_of);
    for (int c = 'a'; c <= 'z'; c++)
        class_of[c] = class_of[c - 32] = LETTER;
    for (int c = '0'; c <= '9'; c++)
        class_of[c] = DIGIT;
    for (const char *c = "\t\n\v\f\r "; *c; c++)
        class_of[(int)*c] = SPACE;
    class_of['\n'] |= LINE;
    class_of['\r'] |= LINE;
}

/* The first place from `at` on whose character is of none of these classes. */
static Py_ssize_t run(const unsigned char *text, Py_ssize_t at, Py_ssize_t size, int classes)
{
    while (at < size && class_of[text[at]] & classes)
        at++;
    return at;
}

/* Length of 's, 't, 're, 've, 'm, 'll, 'd after an apostrophe at `at`; 0 when there is none. */
static int contraction(const unsigned char *text, Py_ssize_t at, Py_ssize_t size, int any_case)
{
    if (at + 1 >= size)
        return 0;
    int first = text[at + 1], second = at + 2 < size ? text[at + 2] : 0;
    if (any_case) {
        first = ascii_lower(first);
        second = ascii_lower(second);
    }
    if (first == 's' || first == 't' || first == 'm' || first == 'd')
        return 2;
    return ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l') ? 3 : 0;
}

/* \s+(?!\S)|\s+ : a run of spaces leaves its last one to the word that follows. */
static Py_ssize_t spaces(Py_ssize_t at, Py_ssize_t end, Py_ssize_t size)
{
    return end == size || end - at == 1 ? end : end - 1;
}

static Py_ssize_t gpt2_end(const unsigned char *text, Py_ssize_t at, Py_ssize_t size)
{
    int length = text[at] == '\'' ? contraction(text, at, size, 0) : 0;
    if (length)
        return at + length;
    Py_ssize_t start = at + (text[at] == ' ' && at + 1 < size);
    int class = class_of[text[start]];
    if (class & (LETTER | DIGIT | OTHER))
        return run(text, start, size, class);
    return spaces(at, run(text, at, size, SPACE), size);
}

static Py_ssize_t newer_end(const unsigned char *text, Py_ssize_t at, Py_ssize_t size, int digits)
{
    int length = text[at] == '\'' ? contraction(text, at, size, 1) : 0;
    if (length)
        return at + length;
    int class = class_of[text[at]];
    int before_letters = !(class & (LETTER | DIGIT | LINE));
    if (class & LETTER || (before_letters && at + 1 < size && class_of[text[at + 1]] & LETTER))
        return run(text, at + before_letters, size, LETTER);
    if (class & DIGIT)
        return run(text, at, at + digits < size ? at + digits : size, DIGIT);
    Py_ssize_t start = at + (text[at] == ' ' && at + 1 < size);
    if (class_of[text[start]] & OTHER)
        return run(text, run(text, start, size, OTHER), size, LINE);
    Py_ssize_t end = run(text, at, size, SPACE), line = end;
    while (line > at && !(class_of[text[line - 1]] & LINE))
        line--;
    return line > at ? line : spaces(at, end, size);
}

static Py_ssize_t word_end(int pattern, const unsigned char *text, Py_ssize_t at, Py_ssize_t size)
{
    return pattern == GPT2 ? gpt2_end(text, at, size) : newer_end(text, at, size, pattern == ONE_DIGIT ? 1 : 3);
}

/* One word: where its text is in the arena, and after it (aligned) its ids. An empty place has no length. */
typedef struct {
    uint32_t hash, offset;
    uint16_t length, ids;
} Entry;

typedef struct {
    PyObject_HEAD
    int pattern;
    uint64_t key;
    Entry *entries;
    uint32_t places, used; /* places: a power of two */
    uint32_t most;
    unsigned char *arena;
    size_t arena_used, arena_size;
} Words;

static uint64_t mixed(uint64_t a, uint64_t b)
{
    __uint128_t product = (__uint128_t)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint32_t hash_of(const Words *self, const unsigned char *word, size_t length)
{
    uint64_t state = self->key ^ length, part;
    for (; length >= 8; word += 8, length -= 8) {
        memcpy(&part, word, 8);
        state = mixed(state ^ part, 0x9e3779b97f4a7c15u ^ self->key);
    }
    part = 0;
    memcpy(&part, word, length);
    return (uint32_t)mixed(state ^ part, 0xd6e8feb86659fd93u ^ self->key);
}

static Entry *place_of(const Words *self, uint32_t hash, const unsigned char *word, size_t length)
{
    uint32_t mask = self->places - 1;
    for (uint32_t at = hash & mask;; at = (at + 1) & mask) {
        Entry *entry = &self->entries[at];
        if (!entry->length)
            return entry;
        if (entry->hash == hash && entry->length == length && !memcmp(self->arena + entry->offset, word, length))
            return entry;
    }
}

static size_t aligned(size_t offset) { return (offset + 3) & ~(size_t)3; }

static int forget(Words *self)
{
    Entry *entries = PyMem_Calloc(1024, sizeof *entries);
    if (!entries)
        return -1;
    PyMem_Free(self->entries);
    PyMem_Free(self->arena);
    self->entries = entries;
    self->places = 1024;
    self->used = 0;
    self->arena = NULL;
    self->arena_used = self->arena_size = 0;
    return 0;
}

static int make_room(Words *self, size_t bytes)
{
    if (self->arena_used + bytes > self->arena_size) {
        size_t size = self->arena_size * 2 + bytes + 4096;
        if (size > UINT32_MAX)
            return -1;
        unsigned char *arena = PyMem_Realloc(self->arena, size);
        if (!arena)
            return -1;
        self->arena = arena;
        self->arena_size = size;
    }
    if (self->used + 1 > self->places / 2) {
        Entry *old = self->entries;
        Entry *entries = PyMem_Calloc(self->places * 2, sizeof *entries);
        if (!entries)
            return -1;
        self->entries = entries;
        self->places *= 2;
        for (uint32_t at = 0; at < self->places / 2; at++)
            if (old[at].length)
                *place_of(self, old[at].hash, self->arena + old[at].offset, old[at].length) = old[at];
        PyMem_Free(old);
    }
    return 0;
}

static PyObject *words_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"pattern", "key", "most", NULL};
    int pattern;
    unsigned long long key;
    unsigned int most;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iKI", names, &pattern, &key, &most))
        return NULL;
    if (pattern < 0 || pattern >= PATTERNS)
        return PyErr_Format(PyExc_ValueError, "pattern must be 0 to %d", PATTERNS - 1);
    Words *self = (Words *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->pattern = pattern;
    self->key = key;
    self->most = most;
    if (forget(self) < 0) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void words_dealloc(Words *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(self->entries);
    PyMem_Free(self->arena);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t words_len(Words *self) { return self->used; }

/* Put the ids of a word into the table; longer words and those with very many ids are left out. */
static int learn(Words *self, PyObject *word, PyObject *ids)
{
    if (!PyUnicode_Check(word) || !PyUnicode_IS_ASCII(word) || !PyBytes_Check(ids) || PyBytes_GET_SIZE(ids) % 4) {
        PyErr_SetString(PyExc_TypeError, "words are ASCII, and their ids bytes of 32 bits each");
        return -1;
    }
    size_t length = (size_t)PyUnicode_GET_LENGTH(word), bytes = (size_t)PyBytes_GET_SIZE(ids);
    if (!length || length > LONGEST_KEPT || bytes / 4 > UINT16_MAX)
        return 0;
    if (make_room(self, length + bytes + 8) < 0) {
        PyErr_NoMemory();
        return -1;
    }
    const unsigned char *text = PyUnicode_1BYTE_DATA(word);
    uint32_t hash = hash_of(self, text, length);
    Entry *entry = place_of(self, hash, text, length);
    if (entry->length)
        return 0;
    size_t offset = aligned(self->arena_used), after = aligned(offset + length);
    memcpy(self->arena + offset, text, length);
    memcpy(self->arena + after, PyBytes_AS_STRING(ids), bytes);
    self->arena_used = after + bytes;
    *entry = (Entry){hash, (uint32_t)offset, (uint16_t)length, (uint16_t)(bytes / 4)};
    self->used++;
    return 0;
}

static PyObject *words_learn(Words *self, PyObject *learned)
{
    PyObject *word, *ids;
    Py_ssize_t at = 0;
    if (!PyDict_Check(learned))
        return PyErr_Format(PyExc_TypeError, "learn takes a dict");
    if ((size_t)self->used + (size_t)PyDict_GET_SIZE(learned) > self->most && forget(self) < 0)
        return PyErr_NoMemory();
    while (self->used < self->most && PyDict_Next(learned, &at, &word, &ids))
        if (learn(self, word, ids) < 0)
            return NULL;
    Py_RETURN_NONE;
}

typedef struct {
    unsigned char *bytes;
    size_t used, size;
} Buffer;

static int append(Buffer *buffer, const void *bytes, size_t count)
{
    if (buffer->used + count > buffer->size) {
        size_t size = buffer->size * 2 + count + 1024;
        unsigned char *grown = PyMem_Realloc(buffer->bytes, size);
        if (!grown) {
            PyErr_NoMemory();
            return -1;
        }
        buffer->bytes = grown;
        buffer->size = size;
    }
    memcpy(buffer->bytes + buffer->used, bytes, count);
    buffer->used += count;
    return 0;
}

/* A word that the table lacks: its ids from `learned`, or the word itself into `missing`. */
static int other_word(PyObject *text, Py_ssize_t at, Py_ssize_t end, PyObject *learned, PyObject *missing, Buffer *ids)
{
    PyObject *word = PyUnicode_Substring(text, at, end);
    if (!word)
        return -1;
    PyObject *found = PyDict_GetItemWithError(learned, word);
    int failed;
    if (found)
        failed = !PyBytes_Check(found) || append(ids, PyBytes_AS_STRING(found), (size_t)PyBytes_GET_SIZE(found)) < 0;
    else
        failed = PyErr_Occurred() != NULL || PyDict_SetItem(missing, word, Py_None) < 0;
    Py_DECREF(word);
    if (failed && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "ids are bytes");
    return failed ? -1 : 0;
}

static PyObject *words_encode(Words *self, PyObject *args)
{
    PyObject *text, *learned, *missing, *result = NULL;
    Py_ssize_t at, stop;
    if (!PyArg_ParseTuple(args, "UnnO!", &text, &at, &stop, &PyDict_Type, &learned))
        return NULL;
    if (!PyUnicode_IS_ASCII(text))
        return PyErr_Format(PyExc_ValueError, "the text must be ASCII");
    const unsigned char *data = PyUnicode_1BYTE_DATA(text);
    Py_ssize_t size = PyUnicode_GET_LENGTH(text);
    if (at < 0 || at > size)
        return PyErr_Format(PyExc_ValueError, "start must be 0 to %zd", size);
    if (!(missing = PyDict_New()))
        return NULL;
    Buffer ids = {0};
    while (at < size && at < stop) {
        Py_ssize_t end = word_end(self->pattern, data, at, size);
        size_t length = (size_t)(end - at);
        Entry *entry = NULL;
        if (length <= LONGEST_KEPT)
            entry = place_of(self, hash_of(self, data + at, length), data + at, length);
        if (entry && entry->length) {
            if (append(&ids, self->arena + aligned(entry->offset + length), (size_t)entry->ids * 4) < 0)
                goto done;
        } else if (other_word(text, at, end, learned, missing, &ids) < 0) {
            goto done;
        }
        at = end;
    }
    result = Py_BuildValue("y#nN", ids.bytes ? (char *)ids.bytes : "", (Py_ssize_t)ids.used, at, PyDict_Keys(missing));
done:
    PyMem_Free(ids.bytes);
    Py_DECREF(missing);
    return result;
}

static PyMethodDef words_methods[] = {
    {"encode", (PyCFunction)words_encode, METH_VARARGS,
     "encode(text, start, stop, learned) -> (ids, end, missing): the ids of the words that begin in [start, stop) as\n"
     "32 bits each, where the last of them ends, and those that neither the table nor `learned` has (then without ids)."},
    {"learn", (PyCFunction)words_learn, METH_O, "learn(words): keep the ids of words; past the most the table begins anew."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot words_slots[] = {
    {Py_tp_new, words_new},
    {Py_tp_dealloc, words_dealloc},
    {Py_sq_length, words_len},
    {Py_tp_methods, words_methods},
    {Py_tp_doc, "Words(pattern, key, most): a table of words, at most so many, for one of the patterns."},
    {0, NULL},
};

static PyType_Spec words_spec = {"router.native.words.Words", sizeof(Words), 0, Py_TPFLAGS_DEFAULT, words_slots};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "words", .m_size = 0};

PyMODINIT_FUNC PyInit_words(void)
{
    fill_classes();
    PyObject *made = PyModule_Create(&module), *type = PyType_FromSpec(&words_spec);
    if (!made || !type || PyModule_AddObjectRef(made, "Words", type) < 0) {
        Py_XDECREF(made);
        made = NULL;
    }
    Py_XDECREF(type);
    return made;
}
