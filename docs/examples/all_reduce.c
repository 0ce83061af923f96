/* One AllReduce: of all GPUs of this process, or of a rank in each process (RANK, WORLD_SIZE), which meet in a file.
 *
 *     cc all_reduce.c -o all_reduce -lnccl -lcudart
 *     all_reduce BYTES [FILE]
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* What of nccl.h and cuda_runtime.h is used here. */
enum { FLOAT32 = 7, SUM = 0, MOST_GPUS = 64 };
typedef struct {
  char bytes[128];
} ncclUniqueId;
int ncclGetUniqueId(ncclUniqueId *id);
int ncclCommInitRank(void **comm, int ranks, ncclUniqueId id, int rank);
int ncclCommInitAll(void **comms, int n, const int *devices);
int ncclCommDestroy(void *comm);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclAllReduce(const void *send, void *receive, size_t count, int type, int op, void *comm, void *stream);
int cudaGetDeviceCount(int *count);
int cudaSetDevice(int device);
int cudaMalloc(void **address, size_t bytes);
int cudaStreamCreate(void **stream);
int cudaStreamSynchronize(void *stream);

static void check(int result, const char *what) {
  if (result == 0) return;
  fprintf(stderr, "%s: %d\n", what, result);
  exit(1);
}
#define CHECK(call) check(call, #call)

static ncclUniqueId meet(int rank, const char *path) {
  ncclUniqueId id;
  if (rank == 0) {
    char made[4096];
    snprintf(made, sizeof made, "%s.made", path);
    CHECK(ncclGetUniqueId(&id));
    FILE *file = fopen(made, "wb");
    if (file == NULL || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) != 0) exit(1);
    rename(made, path);
    return id;
  }
  FILE *file;
  while ((file = fopen(path, "rb")) == NULL) usleep(10000);
  if (fread(&id, sizeof id, 1, file) != 1) exit(1);
  fclose(file);
  return id;
}

int main(int argc, char **argv) {
  size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 1 << 20;
  void *comms[MOST_GPUS], *stream, *buffer;
  int gpus, here;
  CHECK(cudaGetDeviceCount(&gpus));
  here = argc > 2 ? 1 : gpus;
  if (argc > 2) {
    int rank = atoi(getenv("RANK"));
    CHECK(cudaSetDevice(rank % gpus));
    CHECK(ncclCommInitRank(&comms[0], atoi(getenv("WORLD_SIZE")), meet(rank, argv[2]), rank));
  } else {
    CHECK(ncclCommInitAll(comms, gpus, NULL));
  }
  CHECK(ncclGroupStart());
  for (int i = 0; i < here; i++) {
    if (argc <= 2) CHECK(cudaSetDevice(i));
    CHECK(cudaMalloc(&buffer, bytes));
    CHECK(cudaStreamCreate(&stream));
    CHECK(ncclAllReduce(buffer, buffer, bytes / 4, FLOAT32, SUM, comms[i], stream));
  }
  CHECK(ncclGroupEnd());
  CHECK(cudaStreamSynchronize(stream));
  for (int i = 0; i < here; i++) CHECK(ncclCommDestroy(comms[i]));
  printf("%d of %d GPUs: done\n", here, gpus);
  return 0;
}
