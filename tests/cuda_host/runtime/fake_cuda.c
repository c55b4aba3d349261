/* A CUDA runtime, cuBLAS and NCCL without a GPU. Preloaded in front of a CUDA build of torch, it lets torch's own CUDA
 * host code run (allocator, streams, events, pinned copies, autocast, GradScaler, fused optimizers, autograd thread,
 * graph capture) while kernels do nothing. Device memory is host memory, copies and memsets are executed, results of
 * kernels are meaningless. Errors of device, dtype, shape and order are torch's own. README.md describes the environment
 * variables and what is counted. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "cuda_runtime_api.h"

#define MAX_DEVICES 8
#define MAX_RECORDS 65536
typedef cudaError_t E;

/* --- counters ---------------------------------------------------------------------------------------------------- */

enum counter { LAUNCH, GEMM, H2D_PINNED, H2D_PAGEABLE, D2H_PINNED, D2H_PAGEABLE, D2D, PEER, STREAM_SYNC, DEVICE_SYNC,
               EVENT_SYNC, MEMCPY_SYNC, MALLOC, HOST_ALLOC, MEMSET, GRAPH_LAUNCH, CAPTURED_NODE, ALL_REDUCE, COLLECTIVE,
               COUNTERS };
static const char *NAMES = "launch gemm h2d_pinned h2d_pageable d2h_pinned d2h_pageable d2d peer stream_sync device_sync "
                           "event_sync memcpy_sync malloc host_alloc memset graph_launch captured_node all_reduce "
                           "collective";
static long own_counters[COUNTERS], *counters;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Called for what a training step should not do: a sync, a pageable copy. Set by tests, from Python. */
void (*fake_cuda_on_wait)(const char *what, size_t bytes);
/* Called after a device-to-host copy, and may replace what the host reads. Set by tests, from Python. */
void (*fake_cuda_on_read)(void *host, size_t bytes);

const char *fake_cuda_names(void) { return NAMES; }

/* In the file FAKE_CUDA_COUNTS.<pid> where that is set, so that a killed process is counted, too. */
static void open_counters(void) {
    const char *prefix = getenv("FAKE_CUDA_COUNTS");
    counters = own_counters;
    if (!prefix) return;
    char path[4096];
    snprintf(path, sizeof path, "%s.%d", prefix, getpid());
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    if (fd < 0 || ftruncate(fd, sizeof own_counters)) { perror(path); abort(); }
    void *map = mmap(0, sizeof own_counters, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) { perror(path); abort(); }
    counters = map;
    close(fd);
}
long *fake_cuda_counters(void) { pthread_once(&once, open_counters); return counters; }
static void count(enum counter what) { __atomic_fetch_add(&fake_cuda_counters()[what], 1, __ATOMIC_RELAXED); }
static void waited(enum counter what, const char *name, size_t bytes) {
    count(what);
    if (fake_cuda_on_wait) fake_cuda_on_wait(name, bytes);
}

static long setting(const char *name, long otherwise) { const char *text = getenv(name); return text ? atol(text) : otherwise; }

/* --- errors ------------------------------------------------------------------------------------------------------ */

static __thread E last_error;
static E fail(E error) { last_error = error; return error; }
E cudaGetLastError(void) { E error = last_error; last_error = cudaSuccess; return error; }
E cudaPeekAtLastError(void) { return last_error; }
const char *cudaGetErrorString(E error) {
    switch ((int)error) {
        case cudaSuccess: return "no error";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInitializationError: return "initialization error (CUDA after fork)";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected";
        case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
        default: return "error of the fake CUDA runtime";
    }
}
const char *cudaGetErrorName(E error) { return cudaGetErrorString(error); }

/* As with real CUDA, a process that forks after its first use of the device leaves the child without it. */
static pid_t context_pid;
static E context(void) {
    if (!context_pid) context_pid = getpid();
    return context_pid == getpid() ? cudaSuccess : fail(cudaErrorInitializationError);
}
#define NEED_CONTEXT() do { E e_ = context(); if (e_) return e_; } while (0)

/* --- devices ----------------------------------------------------------------------------------------------------- */

static __thread int device;

/* FAKE_CUDA_DEVICES (1), of which CUDA_VISIBLE_DEVICES shows some. */
static int device_count(void) {
    long present = setting("FAKE_CUDA_DEVICES", 1);
    if (present > MAX_DEVICES) present = MAX_DEVICES;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!visible) return present;
    int shown = 0;
    while (*visible) {
        char *end;
        long number = strtol(visible, &end, 10);
        if (end == visible || number < 0 || number >= present) break;
        shown++;
        visible = *end == ',' ? end + 1 : end;
    }
    return shown;
}
E cudaGetDeviceCount(int *n) { *n = device_count(); return *n ? cudaSuccess : fail(cudaErrorNoDevice); }
E cudaGetDevice(int *d) { *d = device; return cudaSuccess; }
E cudaSetDevice(int d) { if (d < 0 || d >= device_count()) return fail(cudaErrorInvalidDevice); device = d; return cudaSuccess; }
E cudaDriverGetVersion(int *v) { *v = 12080; return cudaSuccess; }
E cudaRuntimeGetVersion(int *v) { *v = 12080; return cudaSuccess; }
static size_t total_memory(void) { return (size_t)setting("FAKE_CUDA_MEMORY_MB", 32768) << 20; }
E cudaGetDeviceProperties_v2(struct cudaDeviceProp *p, int d) {
    memset(p, 0, sizeof *p);
    strcpy(p->name, "Fake RTX 5090");
    p->totalGlobalMem = total_memory();
    p->sharedMemPerBlock = 49152; p->sharedMemPerBlockOptin = 101376; p->sharedMemPerMultiprocessor = 102400;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32; p->maxThreadsPerBlock = 1024; p->maxThreadsPerMultiProcessor = 1536; p->multiProcessorCount = 170;
    p->maxBlocksPerMultiProcessor = 24;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024; p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647; p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = 12; p->minor = 0; p->textureAlignment = 512; p->unifiedAddressing = 1; p->l2CacheSize = 96 << 20;
    return cudaSuccess;
}
E cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int d) {
    switch ((int)a) {
        case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *v = 1024; break;
        case cudaDevAttrMaxBlockDimZ: *v = 64; break;
        case cudaDevAttrMaxGridDimX: *v = 2147483647; break;
        case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *v = 65535; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *v = 49152; break;
        case cudaDevAttrWarpSize: *v = 32; break;
        case cudaDevAttrMultiProcessorCount: *v = 170; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *v = 1536; break;
        case cudaDevAttrComputeCapabilityMajor: *v = 12; break;
        case cudaDevAttrComputeCapabilityMinor: *v = 0; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *v = 102400; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *v = 101376; break;
        default: *v = 1;
    }
    return cudaSuccess;
}
E cudaDeviceCanAccessPeer(int *can, int a, int b) { *can = 0; return cudaSuccess; }
E cudaDeviceEnablePeerAccess(int a, unsigned flags) { return cudaSuccess; }
E cudaDeviceGetStreamPriorityRange(int *low, int *high) { *low = 0; *high = -5; return cudaSuccess; }
E cudaDeviceGetPCIBusId(char *text, int n, int d) { snprintf(text, n, "0000:%02x:00.0", d); return cudaSuccess; }
E cudaProfilerStart(void) { return cudaSuccess; }
E cudaProfilerStop(void) { return cudaSuccess; }

/* --- streams, events, capture ------------------------------------------------------------------------------------ */

struct capture { long nodes; int is_invalid, is_over; unsigned long long id; enum cudaStreamCaptureMode mode; };
struct stream { int priority; struct capture *capture; };
struct event { struct capture *capture; double milliseconds; };
static struct stream default_streams[MAX_DEVICES];
static int captures_of_all_threads;
static __thread int captures_of_thread;
static __thread enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

static struct stream *stream_of(cudaStream_t s) {
    return (size_t)s <= 2 ? &default_streams[device] : (struct stream *)s; /* 0, 1, 2: the default streams */
}
static struct capture *capture_of(cudaStream_t s) {
    struct capture *c = stream_of(s)->capture;
    return c && !c->is_over ? c : 0;
}
/* What invalidates a capture while one is under way in this mode (cudaMalloc, cudaEventQuery, syncs). */
static E potentially_unsafe(void) {
    if (thread_mode == cudaStreamCaptureModeRelaxed || !(captures_of_all_threads || captures_of_thread)) return cudaSuccess;
    return fail(cudaErrorStreamCaptureUnsupported);
}
#define REFUSE_IN_CAPTURE() do { E e_ = potentially_unsafe(); if (e_) return e_; } while (0)
static E invalidate(cudaStream_t s) {
    struct capture *c = capture_of(s);
    if (!c) return cudaSuccess;
    c->is_invalid = 1;
    return fail(cudaErrorStreamCaptureUnsupported);
}
/* Whether the operation becomes a node of a graph, and is therefore not executed. */
static int captured(cudaStream_t s) {
    struct capture *c = capture_of(s);
    if (!c) return 0;
    c->nodes++;
    count(CAPTURED_NODE);
    return 1;
}

E cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
    struct stream *made = calloc(1, sizeof *made);
    made->priority = priority;
    *s = (cudaStream_t)made;
    return cudaSuccess;
}
E cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithPriority(s, 0, 0); }
E cudaStreamDestroy(cudaStream_t s) { if ((size_t)s > 2) free(s); return cudaSuccess; }
E cudaStreamGetPriority(cudaStream_t s, int *p) { *p = stream_of(s)->priority; return cudaSuccess; }
E cudaStreamQuery(cudaStream_t s) { return invalidate(s); }
E cudaStreamSynchronize(cudaStream_t s) {
    NEED_CONTEXT();
    E error = invalidate(s);
    if (error) return error;
    waited(STREAM_SYNC, "cudaStreamSynchronize", 0);
    return cudaSuccess;
}
E cudaDeviceSynchronize(void) {
    NEED_CONTEXT();
    REFUSE_IN_CAPTURE();
    waited(DEVICE_SYNC, "cudaDeviceSynchronize", 0);
    return cudaSuccess;
}
E cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    struct event *event = (struct event *)e;
    if (event->capture && !event->capture->is_over && !capture_of(s)) stream_of(s)->capture = event->capture; /* joins */
    return cudaSuccess;
}
E cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void *data, unsigned flags) { f(s, cudaSuccess, data); return cudaSuccess; }
E cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *data) { if (!captured(s)) f(data); return cudaSuccess; }

E cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) { *e = calloc(1, sizeof(struct event)); return cudaSuccess; }
E cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
E cudaEventDestroy(cudaEvent_t e) { free(e); return cudaSuccess; }
E cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags) {
    struct event *event = (struct event *)e;
    struct timespec now;
    clock_gettime(getenv("FAKE_CUDA_CPU_CLOCK") ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    event->milliseconds = now.tv_sec * 1e3 + now.tv_nsec / 1e6; /* the device is as fast as the host */
    event->capture = capture_of(s);
    return cudaSuccess;
}
E cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return cudaEventRecordWithFlags(e, s, 0); }
E cudaEventQuery(cudaEvent_t e) { REFUSE_IN_CAPTURE(); return cudaSuccess; }
E cudaEventSynchronize(cudaEvent_t e) {
    NEED_CONTEXT();
    struct capture *c = ((struct event *)e)->capture;
    if (c && !c->is_over) return fail(cudaErrorStreamCaptureUnsupported);
    waited(EVENT_SYNC, "cudaEventSynchronize", 0);
    return cudaSuccess;
}
E cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
    *ms = ((struct event *)b)->milliseconds - ((struct event *)a)->milliseconds;
    return cudaSuccess;
}

static unsigned long long last_capture_id;
E cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    enum cudaStreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return cudaSuccess;
}
E cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    NEED_CONTEXT();
    if ((size_t)s <= 2) return fail(cudaErrorStreamCaptureUnsupported); /* not the default streams */
    if (getenv("FAKE_CUDA_REFUSE_CAPTURE")) return fail(cudaErrorStreamCaptureUnsupported);
    struct capture *c = calloc(1, sizeof *c);
    c->id = ++last_capture_id;
    c->mode = mode;
    stream_of(s)->capture = c;
    if (mode == cudaStreamCaptureModeGlobal) captures_of_all_threads++;
    if (mode == cudaStreamCaptureModeThreadLocal) captures_of_thread++;
    return cudaSuccess;
}
E cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) {
    struct capture *c = capture_of(s);
    if (!c) return fail(cudaErrorIllegalState);
    c->is_over = 1; /* also for the streams that have joined */
    if (c->mode == cudaStreamCaptureModeGlobal) captures_of_all_threads--;
    if (c->mode == cudaStreamCaptureModeThreadLocal) captures_of_thread--;
    *graph = c->is_invalid ? 0 : (cudaGraph_t)c;
    return c->is_invalid ? fail(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
}
E cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) {
    struct capture *c = capture_of(s);
    *status = !c ? cudaStreamCaptureStatusNone : c->is_invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
E cudaStreamGetCaptureInfo_v2(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
                              const cudaGraphNode_t **nodes, size_t *n) {
    struct capture *c = capture_of(s);
    cudaStreamIsCapturing(s, status);
    if (id) *id = c ? c->id : 0;
    if (graph) *graph = (cudaGraph_t)c;
    if (nodes) *nodes = 0;
    if (n) *n = 0;
    return cudaSuccess;
}
E cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n) { *n = ((struct capture *)g)->nodes; return cudaSuccess; }
E cudaGraphInstantiateWithFlags(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags) { *x = (cudaGraphExec_t)g; return cudaSuccess; }
E cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags) { return cudaGraphInstantiateWithFlags(x, g, flags); }
E cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s) { NEED_CONTEXT(); count(GRAPH_LAUNCH); return cudaSuccess; }
E cudaGraphDebugDotPrint(cudaGraph_t g, const char *path, unsigned flags) { return cudaSuccess; }
E cudaGraphDestroy(cudaGraph_t g) { return cudaSuccess; } /* kept: the executable is the same record */
E cudaGraphExecDestroy(cudaGraphExec_t x) { return cudaSuccess; }

/* --- memory ------------------------------------------------------------------------------------------------------ */

enum kind { PAGEABLE, PINNED, DEVICE };
static struct { char *start; size_t size; enum kind kind; int device; } records[MAX_RECORDS];
static int record_count;
static size_t used[MAX_DEVICES];

static void add(void *start, size_t size, enum kind kind) {
    pthread_mutex_lock(&lock);
    if (record_count == MAX_RECORDS) { fprintf(stderr, "fake_cuda: more than %d allocations\n", MAX_RECORDS); abort(); }
    records[record_count].start = start;
    records[record_count].size = size;
    records[record_count].kind = kind;
    records[record_count++].device = device;
    if (kind == DEVICE) used[device] += size;
    pthread_mutex_unlock(&lock);
}
/* Size of what began at `start`; 0: nothing did. */
static size_t drop(void *start) {
    size_t size = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < record_count; i++) {
        if (records[i].start != start) continue;
        size = records[i].size;
        if (records[i].kind == DEVICE) used[records[i].device] -= size;
        records[i] = records[--record_count];
        break;
    }
    pthread_mutex_unlock(&lock);
    return size;
}
static enum kind kind_of(const void *p, int *on) {
    enum kind found = PAGEABLE;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < record_count; i++) {
        if ((char *)p < records[i].start || (char *)p >= records[i].start + records[i].size) continue;
        found = records[i].kind;
        if (on) *on = records[i].device;
        break;
    }
    pthread_mutex_unlock(&lock);
    return found;
}
static size_t pages(size_t n) { return n ? (n + 4095) & ~4095ul : 4096; }
static E map(void **p, size_t n, enum kind kind) {
    *p = mmap(0, pages(n), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*p == MAP_FAILED) { *p = 0; return fail(cudaErrorMemoryAllocation); }
    add(*p, pages(n), kind);
    return cudaSuccess;
}
/* FAKE_CUDA_MEMORY_MB limits a device; FAKE_CUDA_OOM_AT refuses the n-th allocation and the FAKE_CUDA_OOM_TIMES - 1 (1)
 * after it: torch frees its cache and tries a second time. */
E cudaMalloc(void **p, size_t n) {
    static long number;
    NEED_CONTEXT();
    REFUSE_IN_CAPTURE();
    count(MALLOC);
    long first = setting("FAKE_CUDA_OOM_AT", 0), times = setting("FAKE_CUDA_OOM_TIMES", 2);
    long now = __atomic_add_fetch(&number, 1, __ATOMIC_RELAXED);
    *p = 0;
    if ((first && now >= first && now < first + times) || used[device] + pages(n) > total_memory()) return fail(cudaErrorMemoryAllocation);
    return map(p, n, DEVICE);
}
E cudaFree(void *p) {
    size_t size = p ? drop(p) : 0;
    if (p && !size) return fail(cudaErrorInvalidValue);
    if (size) munmap(p, size);
    return cudaSuccess;
}
E cudaMallocAsync(void **p, size_t n, cudaStream_t s) { return cudaMalloc(p, n); }
E cudaFreeAsync(void *p, cudaStream_t s) { return cudaFree(p); }
E cudaMemGetInfo(size_t *free_bytes, size_t *total) { *total = total_memory(); *free_bytes = *total - used[device]; return cudaSuccess; }
E cudaHostAlloc(void **p, size_t n, unsigned flags) {
    NEED_CONTEXT();
    REFUSE_IN_CAPTURE();
    count(HOST_ALLOC);
    return map(p, n, PINNED);
}
E cudaFreeHost(void *p) { return cudaFree(p); }
E cudaHostRegister(void *p, size_t n, unsigned flags) {
    NEED_CONTEXT();
    if (getenv("FAKE_CUDA_REFUSE_PIN")) return fail(cudaErrorMemoryAllocation);
    add(p, n, PINNED);
    return cudaSuccess;
}
E cudaHostUnregister(void *p) { return drop(p) ? cudaSuccess : fail(cudaErrorHostMemoryNotRegistered); }
E cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
    memset(a, 0, sizeof *a);
    a->type = (enum cudaMemoryType)kind_of(p, &a->device);
    a->devicePointer = a->hostPointer = (void *)p;
    return cudaSuccess;
}

/* FAKE_CUDA_NO_COPIES: copies are counted but not executed; a GPU's copy engine would execute them. */
static int executes_copies(void) {
    static int answer = -1;
    if (answer < 0) answer = !getenv("FAKE_CUDA_NO_COPIES");
    return answer;
}
static E copied(void *to, const void *from, size_t width, size_t to_pitch, size_t from_pitch, size_t rows, cudaStream_t s, int is_captured) {
    enum kind a = kind_of(to, 0), b = kind_of(from, 0);
    if (a == DEVICE && b == DEVICE) count(D2D);
    else if (a == DEVICE && b == PINNED) count(H2D_PINNED);
    else if (a == DEVICE) waited(H2D_PAGEABLE, "pageable copy to the device", width * rows);
    else if (b == DEVICE && a == PINNED) count(D2H_PINNED);
    else if (b == DEVICE) waited(D2H_PAGEABLE, "pageable copy to the host", width * rows);
    if (is_captured) return cudaSuccess;
    if (executes_copies() || (a != DEVICE && rows * width <= 4096))
        for (size_t i = 0; i < rows; i++) memmove((char *)to + i * to_pitch, (char *)from + i * from_pitch, width);
    if (b == DEVICE && a != DEVICE && fake_cuda_on_read) fake_cuda_on_read(to, width * rows);
    return cudaSuccess;
}
E cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind k) {
    NEED_CONTEXT();
    REFUSE_IN_CAPTURE();
    waited(MEMCPY_SYNC, "cudaMemcpy", n);
    return copied(to, from, n, n, n, 1, 0, 0);
}
E cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind k, cudaStream_t s) {
    NEED_CONTEXT();
    return copied(to, from, n, n, n, 1, s, captured(s));
}
E cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows,
                    enum cudaMemcpyKind k, cudaStream_t s) {
    NEED_CONTEXT();
    return copied(to, from, width, to_pitch, from_pitch, rows, s, captured(s));
}
E cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t n, cudaStream_t s) {
    NEED_CONTEXT();
    count(PEER);
    if (!captured(s)) memmove(to, from, n);
    return cudaSuccess;
}
E cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s) {
    NEED_CONTEXT();
    count(MEMSET);
    if (!captured(s) && executes_copies()) memset(p, value, n);
    return cudaSuccess;
}
E cudaMemset(void *p, int value, size_t n) { return cudaMemsetAsync(p, value, n, 0); }

/* --- kernels ----------------------------------------------------------------------------------------------------- */

static E launch(cudaStream_t s) {
    NEED_CONTEXT();
    if (!captured(s)) count(LAUNCH);
    return cudaSuccess;
}
E cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s) {
    if (!grid.x || !grid.y || !grid.z || !block.x || block.x * block.y * block.z > 1024 || grid.y > 65535 || grid.z > 65535)
        return fail(cudaErrorInvalidConfiguration);
    return launch(s);
}
E cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *f, void **args) { return launch(config->stream); }
E cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024; a->numRegs = 32; a->ptxVersion = a->binaryVersion = 120;
    a->maxDynamicSharedSizeBytes = 49152;
    return cudaSuccess;
}
E cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute a, int v) { return cudaSuccess; }
E cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int block, size_t shared, unsigned flags) { *n = 4; return cudaSuccess; }
static __thread struct { dim3 grid, block; size_t shared; void *stream; } pushed;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
    pushed.grid = grid; pushed.block = block; pushed.shared = shared; pushed.stream = stream;
    return 0;
}
E __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = pushed.grid; *block = pushed.block; *shared = pushed.shared; *(void **)stream = pushed.stream;
    return cudaSuccess;
}

/* --- driver entry points ----------------------------------------------------------------------------------------- */

int cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *active) {
    if (flags) *flags = 0;
    if (active) *active = d == 0 || context_pid;
    return 0;
}
int cuCtxGetCurrent(void **current) { *current = (void *)0x79; return 0; }
int cuCtxSetCurrent(void *wanted) { return 0; }
int cuDevicePrimaryCtxRetain(void **made, int d) { return cuCtxGetCurrent(made); }
int cuGetErrorString(int error, const char **text) { *text = "error of the fake CUDA driver"; return 0; }
/* Kernels that torch compiles while it runs (jiterator): compiled by the real NVRTC, launched here. */
int cuModuleLoadData(void **module, const void *image) { *module = (void *)0x7a; return 0; }
int cuModuleGetFunction(void **f, void *module, const char *name) { *f = (void *)0x7b; return 0; }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, cudaStream_t s) {
    return launch(s);
}
static int driver_function(void) { return 0; }
E cudaGetDriverEntryPoint(const char *name, void **f, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
    *f = strstr(name, "PrimaryCtxGetState") ? (void *)cuDevicePrimaryCtxGetState : (void *)driver_function;
    if (result) *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
E cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
    return cudaGetDriverEntryPoint(name, f, flags, result);
}

/* --- cuBLAS ------------------------------------------------------------------------------------------------------ */

static __thread cudaStream_t blas_stream;
static int gemm(void) { count(GEMM); captured(blas_stream); return 0; }
int cublasCreate_v2(void **handle) { *handle = (void *)0x77; return 0; }
int cublasDestroy_v2(void *handle) { return 0; }
int cublasLtCreate(void **handle) { *handle = (void *)0x78; return 0; }
int cublasSetStream_v2(void *handle, cudaStream_t s) { blas_stream = s; return 0; }
int cublasGetMathMode(void *handle, int *mode) { *mode = 0; return 0; }
int cublasGetPointerMode_v2(void *handle, int *mode) { *mode = 0; return 0; }
int cublasLtMatmulAlgoGetHeuristic(void *h, void *op, void *a, void *b, void *c, void *d, void *preference, int wanted, char *results, int *found) {
    memset(results, 0, 64);
    *found = 1;
    return 0;
}
#define NOTHING(name) int name(void) { return 0; }
#define MULTIPLIES(name) int name(void) { return gemm(); }
NOTHING(cublasSetMathMode) NOTHING(cublasSetPointerMode_v2) NOTHING(cublasSetWorkspace_v2)
NOTHING(cublasLtMatmulDescCreate) NOTHING(cublasLtMatmulDescDestroy) NOTHING(cublasLtMatmulDescSetAttribute)
NOTHING(cublasLtMatmulPreferenceCreate) NOTHING(cublasLtMatmulPreferenceDestroy)
NOTHING(cublasLtMatmulPreferenceSetAttribute) NOTHING(cublasLtMatrixLayoutCreate) NOTHING(cublasLtMatrixLayoutDestroy)
NOTHING(cublasLtMatrixLayoutSetAttribute)
MULTIPLIES(cublasLtMatmul) MULTIPLIES(cublasGemmEx) MULTIPLIES(cublasGemmStridedBatchedEx) MULTIPLIES(cublasSgemmEx)
MULTIPLIES(cublasSgemm_v2) MULTIPLIES(cublasDgemm_v2) MULTIPLIES(cublasSgemv_v2) MULTIPLIES(cublasDgemv_v2)
MULTIPLIES(cublasSgemmStridedBatched) MULTIPLIES(cublasDgemmStridedBatched) MULTIPLIES(cublasSgemmBatched)
MULTIPLIES(cublasDgemmBatched) MULTIPLIES(cublasSdot_v2) MULTIPLIES(cublasDdot_v2) MULTIPLIES(cublasDotEx)
MULTIPLIES(cublasGemmBatchedEx) MULTIPLIES(cublasSgetrfBatched) MULTIPLIES(cublasStrsm_v2)

/* --- NCCL: each process keeps its own values -------------------------------------------------------------------- */

struct comm { int rank, size; };
static const size_t ELEMENT[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}; /* bytes by ncclDataType_t */
static int collective(enum counter what, cudaStream_t s, const void *from, void *to, size_t bytes) {
    if (what != COLLECTIVE) count(COLLECTIVE);
    count(what);
    if (!captured(s) && from && from != to) memmove(to, from, bytes);
    return 0;
}
int ncclGetVersion(int *v) { *v = 22703; return 0; }
int ncclGetUniqueId(void *id) { memset(id, 7, 128); return 0; }
struct unique { char bytes[128]; };
int ncclCommInitRank(struct comm **c, int size, struct unique id, int rank) {
    *c = malloc(sizeof **c);
    (*c)->rank = rank; (*c)->size = size;
    return 0;
}
int ncclCommInitRankConfig(struct comm **c, int size, struct unique id, int rank, void *config) { return ncclCommInitRank(c, size, id, rank); }
int ncclCommInitAll(struct comm **c, int n, const int *devices) {
    struct unique id;
    for (int i = 0; i < n; i++) ncclCommInitRank(c + i, n, id, i);
    return 0;
}
int ncclCommCount(struct comm *c, int *n) { *n = c->size; return 0; }
int ncclCommUserRank(struct comm *c, int *rank) { *rank = c->rank; return 0; }
int ncclCommGetAsyncError(struct comm *c, int *error) { *error = 0; return 0; }
int ncclCommSplit(struct comm *c, int color, int key, struct comm **made, void *config) {
    struct unique id;
    return ncclCommInitRank(made, c->size, id, c->rank);
}
const char *ncclGetErrorString(int error) { return "error of the fake NCCL"; }
const char *ncclGetLastError(void *c) { return ""; }
int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, struct comm *c, cudaStream_t s) { return collective(ALL_REDUCE, s, from, to, n * ELEMENT[type]); }
int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, struct comm *c, cudaStream_t s) { return collective(COLLECTIVE, s, from, to, n * ELEMENT[type]); }
int ncclBcast(void *p, size_t n, int type, int root, struct comm *c, cudaStream_t s) { return collective(COLLECTIVE, s, 0, p, 0); }
int ncclReduce(const void *from, void *to, size_t n, int type, int op, int root, struct comm *c, cudaStream_t s) { return collective(COLLECTIVE, s, from, to ? to : (void *)from, n * ELEMENT[type]); }
int ncclAllGather(const void *from, void *to, size_t n, int type, struct comm *c, cudaStream_t s) {
    for (int i = 0; i < c->size; i++) memmove((char *)to + i * n * ELEMENT[type], from, n * ELEMENT[type]);
    return collective(COLLECTIVE, s, 0, 0, 0);
}
int ncclReduceScatter(const void *from, void *to, size_t n, int type, int op, struct comm *c, cudaStream_t s) {
    return collective(COLLECTIVE, s, (const char *)from + c->rank * n * ELEMENT[type], to, n * ELEMENT[type]);
}
NOTHING(ncclCommDestroy) NOTHING(ncclCommAbort) NOTHING(ncclCommFinalize) NOTHING(ncclCommRegister)
NOTHING(ncclCommDeregister) NOTHING(ncclGroupStart) NOTHING(ncclGroupEnd) NOTHING(ncclSend) NOTHING(ncclRecv)
NOTHING(ncclRedOpCreatePreMulSum) NOTHING(ncclRedOpDestroy)
