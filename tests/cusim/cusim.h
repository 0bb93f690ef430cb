// CUDA C++ on a CPU, for tests: the shipped headers compiled by g++, every CUDA thread a fiber of scheduler.cpp.
//
// A kernel runs under a schedule that real hardware could choose but seldom does. Reported: threads that meet at
// different barriers or shuffles, or that wait for one which never comes; accesses off their alignment. With
// ThreadSanitizer, barriers are the only thing that orders two threads' accesses, so a missing one is a data race in
// any order; with AddressSanitizer, so is every byte outside an array an error. Shared memory starts as NaN.
#pragma once

#include <math.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#define ONEPASS_CUSIM 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
    unsigned x, y, z;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

namespace cusim {

// Where in the source a thread called.
struct Site {
    const char* file;
    int line;
};
inline Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }

// What the running thread sees of the launch.
struct View {
    dim3 thread;
    dim3 block;
    dim3 block_size;
    dim3 grid_size;
    unsigned lane;
};
const View& view();

void barrier(Site site);
void warp_barrier(Site site);
unsigned exchange(unsigned mask, unsigned value, int source, Site site);  // source < 0: the lane's own value
void yield(Site site);                                                    // another thread next
void spin(Site site);                                                     // and this one has seen that it must wait
[[noreturn]] void fail(const char* message, Site site);

// The block's shared memory: dynamic, and a variable of a kernel, known by its address in the program.
void* dynamic_memory();
void* variable(const void* key, std::size_t bytes);

// What the running thread has asked for that need not be there yet; a group ends with one that goes nowhere.
struct Copy {
    void* to = nullptr;
    const void* from = nullptr;
    std::size_t bytes = 0;
};
std::vector<Copy>& copies();

// A cluster: its blocks' barrier in two halves, and stores into another block's shared memory. Such a store arrives
// when somebody looks at the barrier in that block which counts it.
struct Store {
    unsigned long long* to;
    unsigned long long word;
};
void cluster_arrive();
void cluster_wait(Site site);
void init_phases(const void* barrier, unsigned threads);
void expect(const void* barrier, unsigned bytes, Site site);
unsigned long long* elsewhere(const unsigned long long* here, unsigned rank, Site site);
void send(const Store& store, const void* barrier, unsigned rank, Site site);
// Whether a phase is over; if not, what has just arrived, if anything has: to be stored, then counted.
bool over(const void* barrier, unsigned parity, Site site);
bool receive(const void* barrier, Store& store);
void count(const void* barrier, unsigned bytes);

struct Launch {
    unsigned grid;
    unsigned threads;
    std::size_t shared_bytes;
    bool cooperative;    // all blocks at once
    unsigned cluster;    // blocks that reach each other's shared memory
    std::uint64_t seed;  // odd: warps run as far as they can, one after the other; even: any thread next
};
// Null, or what went wrong.
const char* run(const Launch& launch, void (*kernel)(const void*), const void* argument);

template <class T>
T* aligned(T* p, Site site) {
    if (reinterpret_cast<std::uintptr_t>(p) % sizeof(T) != 0) fail("misaligned access", site);
    return p;
}

}  // namespace cusim

#define threadIdx (::cusim::view().thread)
#define blockIdx (::cusim::view().block)
#define blockDim (::cusim::view().block_size)
#define gridDim (::cusim::view().grid_size)
#define __syncthreads() ::cusim::barrier(::cusim::here())
#define __syncwarp() ::cusim::warp_barrier(::cusim::here())

inline unsigned __shfl_sync(unsigned mask, unsigned value, int source, int width = 32,
                            cusim::Site site = cusim::here()) {
    return cusim::exchange(mask, value, cusim::view().lane / width * width + source % width, site);
}

inline unsigned __shfl_xor_sync(unsigned mask, unsigned value, int lane_mask, int width = 32,
                                cusim::Site site = cusim::here()) {
    const int lane = cusim::view().lane, source = lane ^ lane_mask;
    return cusim::exchange(mask, value, source / width > lane / width ? -1 : source, site);
}

inline unsigned __shfl_down_sync(unsigned mask, unsigned value, int offset, int width = 32,
                                 cusim::Site site = cusim::here()) {
    const int lane = cusim::view().lane, source = lane + offset;
    return cusim::exchange(mask, value, source / width != lane / width ? -1 : source, site);
}

template <class T>
T __ldcs(const T* p) {
    return *cusim::aligned(p, cusim::here());
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}

template <class T>
T __ldca(const T* p) {
    return *cusim::aligned(p, cusim::here());
}
template <class T>
void __stcs(T* p, T value) {
    *cusim::aligned(p, cusim::here()) = value;
}
