/* All-reduce. Direct: each rank sends its raw input to all and sums all inputs itself. Scatter: each element has
 * one owner, who sums the raw inputs and sends the result to all. Both sum in rank order: same bits. */
#include <string.h>

#include "collective.h"
#include "group.h"

#define DIRECT_MAX_BYTES 8192 /* above, with three ranks or more, the owner's way moves fewer bytes */

typedef struct job {
    tb_group *g;
    const uint8_t *in;
    uint8_t *out;
    size_t bytes, unit; /* unit: bytes of an element */
    enum tb_dtype dtype;
    enum tb_op op;
} job;

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

enum tb_algorithm tb_algorithm_for(int size, size_t bytes) {
    /* Between two ranks both ways move the same bytes over the link, and the direct one waits once. */
    return size <= 2 || bytes <= DIRECT_MAX_BYTES ? TB_DIRECT : TB_SCATTER;
}

static int send_to_all(const job *j, const uint8_t *data, size_t bytes) {
    int status = TB_OK;
    for (int k = 1; k < j->g->size && status == TB_OK; k++)
        status = tb_send_bytes(j->g, (j->g->rank + k) % j->g->size, data, bytes);
    return status;
}

/* Sums one frame of each peer with our own bytes at `at`. */
static int reduce_frame(const job *j, size_t at, size_t bytes) {
    const void *inputs[TB_MAX_RANKS];
    tb_group *g = j->g;
    for (int r = 0; r < g->size; r++) {
        const uint8_t *payload = j->in + at;
        int status = r == g->rank ? TB_OK : tb_recv_start(g, r, (uint32_t)bytes, &payload);
        if (status != TB_OK)
            return status;
        inputs[r] = payload;
    }
    tb_reduce(j->dtype, j->op, j->out + at, inputs, g->size, bytes / j->unit);
    for (int r = 0; r < g->size; r++)
        if (r != g->rank)
            tb_recv_release(g, r);
    return TB_OK;
}

/* Frames small enough that several are under way, large enough that their heads do not count. */
static size_t chunk_for(const job *j) {
    size_t chunk = j->g->frame_bytes;
    while (chunk > j->g->least_bytes && chunk * 4 > j->bytes)
        chunk = chunk / 2 & ~(size_t)63;
    return chunk;
}

static int direct(const job *j) {
    size_t chunk = chunk_for(j), chunks = j->bytes ? (j->bytes + chunk - 1) / chunk : 1;
    int status = TB_OK;
    for (size_t c = 0; c <= chunks && status == TB_OK; c++) {
        if (c < chunks)
            status = send_to_all(j, j->in + c * chunk, smaller(j->bytes - c * chunk, chunk));
        if (c > 0 && status == TB_OK)
            status = reduce_frame(j, (c - 1) * chunk, smaller(j->bytes - (c - 1) * chunk, chunk));
    }
    return status;
}

/* Round t covers size * chunk bytes from t * size * chunk on; within it rank r owns piece r. */
typedef struct piece {
    size_t at, bytes;
} piece;

static piece piece_of(const job *j, size_t chunk, size_t round, int owner) {
    size_t whole = chunk * (size_t)j->g->size, start = round * whole;
    size_t left = j->bytes - start, elements = smaller(left, whole) / j->unit;
    size_t size = (size_t)j->g->size, each = elements / size, more = elements % size, o = (size_t)owner;
    size_t first = o * each + smaller(o, more);
    return (piece){start + first * j->unit, (each + (o < more)) * j->unit};
}

static int scatter_inputs(const job *j, size_t chunk, size_t round) {
    int status = TB_OK;
    for (int k = 1; k < j->g->size && status == TB_OK; k++) {
        int owner = (j->g->rank + k) % j->g->size;
        piece p = piece_of(j, chunk, round, owner);
        status = tb_send_bytes(j->g, owner, j->in + p.at, p.bytes);
    }
    return status;
}

static int reduce_own(const job *j, size_t chunk, size_t round) {
    piece p = piece_of(j, chunk, round, j->g->rank);
    int status = reduce_frame(j, p.at, p.bytes);
    return status == TB_OK ? send_to_all(j, j->out + p.at, p.bytes) : status;
}

static int collect_results(const job *j, size_t chunk, size_t round) {
    int status = TB_OK;
    for (int k = 1; k < j->g->size && status == TB_OK; k++) {
        int owner = (j->g->rank + k) % j->g->size;
        piece p = piece_of(j, chunk, round, owner);
        status = tb_recv_bytes(j->g, owner, j->out + p.at, p.bytes);
    }
    return status;
}

/* Three stages, each a round behind the one before. Rounds of one channel keep their order, and the slowest
 * rank always finds credits, because no rank is more than three frames ahead of what it has read. */
static int scatter(const job *j) {
    size_t half = j->g->frame_bytes / 2, chunk = half < j->g->least_bytes ? j->g->frame_bytes : half, whole = chunk * (size_t)j->g->size;
    size_t rounds = j->bytes ? (j->bytes + whole - 1) / whole : 1;
    int status = TB_OK;
    for (size_t t = 0; t < rounds + 2 && status == TB_OK; t++) {
        if (t < rounds)
            status = scatter_inputs(j, chunk, t);
        if (status == TB_OK && t >= 1 && t <= rounds)
            status = reduce_own(j, chunk, t - 1);
        if (status == TB_OK && t >= 2)
            status = collect_results(j, chunk, t - 2);
    }
    return status;
}

int tb_all_reduce(tb_group *g, const void *in, void *out, size_t count, enum tb_dtype dtype, enum tb_op op,
                  enum tb_algorithm algorithm, uint64_t timeout_ns) {
    size_t unit = tb_dtype_bytes(dtype);
    job j = {g, in, out, count * unit, unit, dtype, op};
    if (algorithm == TB_ALGORITHM_AUTO)
        algorithm = tb_algorithm_for(g->size, j.bytes);
    unsigned detail = (unsigned)dtype | (unsigned)op << 4 | (unsigned)algorithm << 6;
    int status = tb_begin(g, TB_ALL_REDUCE, TB_NO_PEER, j.bytes, detail, timeout_ns);
    if (status != TB_OK)
        return status;
    unsigned long fp = tb_fp_standard();
    status = algorithm == TB_DIRECT ? direct(&j) : scatter(&j);
    tb_fp_restore(fp);
    return tb_end(g, status);
}
