/* Times of MPI's collectives, measured as ../collectives.rs measures ours.
 *
 * mpicc -O3 -o collectives_mpi collectives_mpi.c
 * mpirun -np RANKS ./collectives_mpi NAME BYTES...
 *
 * Rank 0 prints a JSON row per operation and size; NAME is the row's communicator. Bytes are those of
 * an all_reduce's array and of the whole array of the others. A block's time is that of its slowest
 * rank, a row is the median over blocks. Every operation verifies its result first. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first blocks only warm up. */
enum { WARM_UP = 2, MOST_BLOCKS = 15 };

enum collective { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST, COLLECTIVES };

static const char *const NAMES[COLLECTIVES] = {
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast",
};

static int rank, ranks;

/* all_reduce and broadcast work in the array `in`, as our calls take their input and may return its
 * memory; the others write `out`. `part` is the number of elements of a rank's part. */
static void run(enum collective op, float *in, float *out, int part) {
    switch (op) {
    case ALL_REDUCE:
        MPI_Allreduce(MPI_IN_PLACE, in, part * ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case REDUCE_SCATTER:
        MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case ALL_GATHER:
        MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case ALL_TO_ALL:
        MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    default:
        MPI_Bcast(in, part * ranks, MPI_FLOAT, 0, MPI_COMM_WORLD);
    }
}

/* What a rank brings in a part of its array: small whole numbers, so that sums are exact, and no two
 * alike, so that a part in the wrong place is noticed. */
static float brought(int by, int part) { return (float)(by * ranks + part + 1); }

static float sum_of(int part) {
    float sum = 0;
    for (int by = 0; by < ranks; by++) sum += brought(by, part);
    return sum;
}

static int is_right(enum collective op, float *in, float *out, int part) {
    int inputs = op == ALL_GATHER ? 1 : ranks;
    int outputs = op == REDUCE_SCATTER ? 1 : ranks;
    for (int p = 0; p < inputs; p++)
        for (int i = 0; i < part; i++) in[(size_t)p * part + i] = brought(rank, p);
    run(op, in, out, part);
    const float *result = op == ALL_REDUCE || op == BROADCAST ? in : out;
    for (int p = 0; p < outputs; p++) {
        float expected = 0;
        switch (op) {
        case ALL_REDUCE: expected = sum_of(p); break;
        case REDUCE_SCATTER: expected = sum_of(rank); break;
        case ALL_GATHER: expected = brought(p, 0); break;
        case ALL_TO_ALL: expected = brought(p, rank); break;
        default: expected = brought(0, p);
        }
        for (int i = 0; i < part; i++)
            if (result[(size_t)p * part + i] != expected) return 0;
    }
    return 1;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory) {
        fprintf(stderr, "rank %d has no memory for %zu bytes\n", rank, bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    /* Memory that has been written: untouched zeros would all be one page. */
    memset(memory, 0, bytes);
    return memory;
}

static void measure(const char *communicator, enum collective op, long bytes) {
    int part = (int)((bytes / 4 + ranks - 1) / ranks);
    size_t whole = sizeof(float) * (size_t)part * (size_t)ranks;
    float *in = allocate(whole), *out = allocate(whole);

    int right = is_right(op, in, out, part);
    MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (!right) {
        if (rank == 0) fprintf(stderr, "%s of %ld bytes over %d ranks is wrong\n", NAMES[op], bytes, ranks);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    /* Zeros stay zeros however often they are summed. */
    memset(in, 0, whole);

    int calls = bytes <= 65536 ? 200 : bytes <= 1048576 ? 40 : bytes <= 16777216 ? 5 : 1;
    int blocks = bytes <= 16777216 ? 15 : 9;
    double times[MOST_BLOCKS];
    for (int block = 0; block < blocks + WARM_UP; block++) {
        MPI_Barrier(MPI_COMM_WORLD);
        /* One time around all calls: nothing else happens between them, and reading the clock in each
         * would weigh on the shortest. */
        double start = MPI_Wtime();
        for (int call = 0; call < calls; call++) run(op, in, out, part);
        double slowest = (MPI_Wtime() - start) / calls;
        MPI_Allreduce(MPI_IN_PLACE, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (block >= WARM_UP) times[block - WARM_UP] = slowest;
    }
    if (rank == 0) {
        qsort(times, (size_t)blocks, sizeof *times, ascending);
        printf("{\"communicator\": \"%s\", \"op\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"us\": %.3f}\n",
               communicator, NAMES[op], ranks, whole, times[blocks / 2] * 1e6);
        fflush(stdout);
    }
    free(in);
    free(out);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int op = 0; op < COLLECTIVES; op++)
        for (int i = 2; i < argc; i++) measure(argv[1], (enum collective)op, atol(argv[i]));
    MPI_Finalize();
    return 0;
}
