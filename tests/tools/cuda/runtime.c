/* CUDA's runtime without a GPU: calls succeed, memory is the host's, kernels do nothing.
 *
 * ONNX Runtime's CUDA provider, as it is published, runs with this library in place of libcudart,
 * cuBLAS, cuDNN and the driver. What it decides on the host is then real: which nodes it takes, what
 * it copies between devices, which kernels it would launch on which stream, when it waits. No number
 * that it "computes" is. Each event is a line of the file that CUDA_EVENTS names.
 *
 * Functions that are not here are made by stand_in.py: they do nothing and return success.
 * The device is one of compute capability 9.0.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS, OUT_OF_MEMORY = 2, ATTRIBUTE_MAJOR = 75, ATTRIBUTE_MINOR = 76, ATTRIBUTE_COUNT = 16 };
enum { PROCESSORS = 132 };
static const size_t MEMORY = 1ul << 35;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int capturing;

static void event(const char *format, ...) {
  static FILE *log;
  const char *path = getenv("CUDA_EVENTS");
  if (path == NULL) return;
  pthread_mutex_lock(&lock);
  if (log == NULL) log = fopen(path, "a");
  va_list arguments;
  va_start(arguments, format);
  fputs(capturing ? "captured " : "", log);
  vfprintf(log, format, arguments);
  fputc('\n', log);
  fflush(log);
  va_end(arguments);
  pthread_mutex_unlock(&lock);
}

/* Devices. The places of fields of cudaDeviceProp are the same in CUDA 11 to 13, but for the count
 * of processors, which stands at 384 or 388. */
static int put(void *properties, size_t at, int value) {
  memcpy((char *)properties + at, &value, sizeof value);
  return SUCCESS;
}
int cudaGetDeviceProperties(void *properties, int device) {
  memset(properties, 0, 640);
  strcpy(properties, "stand-in");
  memcpy((char *)properties + 288, &MEMORY, sizeof MEMORY);
  put(properties, 296, 49152);   /* shared memory of a block */
  put(properties, 304, 65536);   /* registers of a block */
  put(properties, 308, 32);      /* threads of a warp */
  put(properties, 320, 1024);    /* threads of a block, and along each axis */
  put(properties, 324, 1024), put(properties, 328, 1024), put(properties, 332, 64);
  put(properties, 336, 2147483647), put(properties, 340, 65535), put(properties, 344, 65535);
  put(properties, 360, 9);       /* compute capability */
  put(properties, 384, PROCESSORS), put(properties, 388, PROCESSORS);
  return SUCCESS;
}
int cudaGetDeviceProperties_v2(void *properties, int device) {
  return cudaGetDeviceProperties(properties, device);
}
int cudaGetDeviceCount(int *count) { return *count = 1, SUCCESS; }
int cudaGetDevice(int *device) { return *device = 0, SUCCESS; }
int cudaDriverGetVersion(int *version) { return *version = 13000, SUCCESS; }
int cudaRuntimeGetVersion(int *version) { return *version = 13000, SUCCESS; }
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == ATTRIBUTE_MAJOR   ? 9
           : attribute == ATTRIBUTE_MINOR ? 0
           : attribute == ATTRIBUTE_COUNT ? PROCESSORS
                                          : 1;
  return SUCCESS;
}
int cudaMemGetInfo(size_t *available, size_t *total) {
  return *available = *total = MEMORY, SUCCESS;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel,
                                                          int threads, size_t shared, unsigned f) {
  return *blocks = 2, SUCCESS;
}
const char *cudaGetErrorString(int error) { return "stand-in"; }
const char *cudaGetErrorName(int error) { return "stand-in"; }
const char *cublasGetStatusString(int status) { return "stand-in"; }
const char *cublasGetStatusName(int status) { return "stand-in"; }
const char *cudnnGetErrorString(int status) { return "stand-in"; }
size_t cudnnGetVersion(void) { return 90000; }

/* Memory, all of it zeros. */
static int allocate(void **pointer, size_t size, const char *kind) {
  event("%s %zu", kind, size);
  *pointer = calloc(size ? size : 1, 1);
  return *pointer ? SUCCESS : OUT_OF_MEMORY;
}
int cudaMalloc(void **pointer, size_t size) { return allocate(pointer, size, "malloc"); }
int cudaMallocAsync(void **p, size_t size, void *stream) { return allocate(p, size, "malloc-async"); }
int cudaMallocFromPoolAsync(void **p, size_t size, void *pool, void *stream) {
  return allocate(p, size, "malloc-async");
}
int cudaMallocHost(void **pointer, size_t size) { return allocate(pointer, size, "malloc-host"); }
int cudaHostAlloc(void **p, size_t size, unsigned f) { return allocate(p, size, "malloc-host"); }
int cudaFree(void *pointer) { return free(pointer), SUCCESS; }
int cudaFreeAsync(void *pointer, void *stream) { return free(pointer), SUCCESS; }
int cudaFreeHost(void *pointer) { return free(pointer), SUCCESS; }
static int copy(void *to, const void *from, size_t size, int kind, const char *how) {
  static const char *const NAMES[] = {"host-host", "host-device", "device-host", "device-device", "any"};
  event("copy%s %s %zu", how, NAMES[kind % 5], size);
  return memmove(to, from, size), SUCCESS;
}
int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
  return copy(to, from, size, kind, "");
}
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
  return copy(to, from, size, kind, "-async");
}
int cudaMemset(void *to, int value, size_t size) { return memset(to, value, size), SUCCESS; }
int cudaMemsetAsync(void *to, int value, size_t size, void *stream) {
  return cudaMemset(to, value, size);
}
int cudaPointerGetAttributes(void *attributes, const void *pointer) {
  return memset(attributes, 0, 32), SUCCESS;
}

/* Streams, events, graphs. */
static int handle(void **value) { return *value = calloc(1, 4096), SUCCESS; }
int cudaStreamCreate(void **stream) { return handle(stream); }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return handle(stream); }
int cudaEventCreate(void **event) { return handle(event); }
int cudaEventCreateWithFlags(void **event, unsigned flags) { return handle(event); }
int cublasCreate_v2(void **library) { return handle(library); }
int cublasLtCreate(void **library) { return handle(library); }
int cudnnCreate(void **library) { return handle(library); }
int cudnnCreateTensorDescriptor(void **descriptor) { return handle(descriptor); }
int cudaMemPoolCreate(void **pool, const void *properties) { return handle(pool); }
int cudaStreamSynchronize(void *stream) { return event("wait stream"), SUCCESS; }
int cudaDeviceSynchronize(void) { return event("wait device"), SUCCESS; }
int cudaEventSynchronize(void *e) { return event("wait event"), SUCCESS; }
int cudaStreamBeginCapture(void *stream, int mode) {
  return capturing = 1, event("begin"), SUCCESS;
}
int cudaStreamEndCapture(void *stream, void **graph) {
  return event("end"), capturing = 0, handle(graph);
}
int cudaStreamIsCapturing(void *stream, int *status) { return *status = capturing, SUCCESS; }
int cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags) {
  return handle(executable);
}
int cudaGraphInstantiateWithFlags(void **e, void *g, unsigned long long f) { return handle(e); }
int cudaGraphLaunch(void *executable, void *stream) { return event("launch graph"), SUCCESS; }

/* Kernels, by the names with which the library registers them. */
static struct { const void *function; const char *name; } *kernels;
static size_t count, room;
static __thread void *next; /* the stream of the launch that is configured */

void **__cudaRegisterFatBinary(void *binary) {
  static void *one;
  return &one;
}
void __cudaRegisterFunction(void **binary, const void *function, char *device, const char *name,
                            int limit, void *t, void *b, void *bd, void *gd, int *w) {
  if (count == room) kernels = realloc(kernels, (room = room ? 2 * room : 4096) * sizeof *kernels);
  kernels[count].function = function;
  kernels[count++].name = name;
}
int __cudaGetKernel(const void **kernel, const void *function) {
  return *kernel = function, SUCCESS;
}
unsigned __cudaPushCallConfiguration(unsigned long long gxy, unsigned gz, unsigned long long bxy,
                                     unsigned bz, size_t shared, void *stream) {
  return next = stream, SUCCESS;
}
int __cudaPopCallConfiguration(void *grid, void *block, size_t *shared, void *stream) {
  unsigned one[3] = {1, 1, 1};
  memcpy(grid, one, sizeof one), memcpy(block, one, sizeof one);
  *shared = 0;
  memcpy(stream, &next, sizeof next);
  return SUCCESS;
}
void stand_in_launched(const char *name, void *stream) { event("launch %s\t%p", name, stream); }
static int launch(const void *function, void *stream) {
  const char *name = "?";
  for (size_t i = count; i-- > 0 && name[0] == '?';)
    if (kernels[i].function == function) name = kernels[i].name;
  return stand_in_launched(name, stream), SUCCESS;
}
struct dim3 { unsigned x, y, z; };
#define LAUNCHED(name) \
  int name(const void *f, struct dim3 g, struct dim3 b, void **a, size_t s, void *stream) { \
    return launch(f, stream); \
  }
LAUNCHED(cudaLaunchKernel) LAUNCHED(__cudaLaunchKernel) LAUNCHED(cudaLaunchCooperativeKernel)
struct configuration { struct dim3 grid, block; size_t shared; void *stream; };
int cudaLaunchKernelExC(const struct configuration *configuration, const void *f) {
  return launch(f, configuration->stream);
}

/* The driver's, which are looked for by name. */
#define DRIVER(name) int name(void) { return SUCCESS; }
DRIVER(cuGetErrorName) DRIVER(cuFuncSetAttribute) DRIVER(cuModuleLoadData) DRIVER(cuModuleUnload)
DRIVER(cuModuleGetFunction) DRIVER(cuLinkCreate_v2)
DRIVER(cuLinkAddFile_v2) DRIVER(cuLinkAddData_v2) DRIVER(cuLinkComplete) DRIVER(cuLinkDestroy)
DRIVER(cuDeviceGetAttribute) DRIVER(cuFuncSetCacheConfig)
int cuLaunchKernel(const void *f) { return launch(f, NULL); }
int cuLaunchCooperativeKernel(const void *f) { return launch(f, NULL); }

#define PRODUCT(name) int name(void) { return event("launch " #name), SUCCESS; }
PRODUCT(cublasGemmEx) PRODUCT(cublasGemmStridedBatchedEx) PRODUCT(cublasGemmBatchedEx)
PRODUCT(cublasSgemm_v2) PRODUCT(cublasSgemmStridedBatched) PRODUCT(cublasSgemmBatched)
PRODUCT(cublasDgemm_v2) PRODUCT(cublasDgemmStridedBatched) PRODUCT(cublasHgemm)
PRODUCT(cublasHgemmStridedBatched) PRODUCT(cublasLtMatmul)
PRODUCT(cudnnReduceTensor) PRODUCT(cudnnConvolutionForward) PRODUCT(cudnnSoftmaxForward)
