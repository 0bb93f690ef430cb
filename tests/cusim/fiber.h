// A stack and a place on it: what is left of a thread when the scheduler decides who runs.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#ifdef CUSIM_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef CUSIM_TSAN
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace cusim {

// Orders accesses of threads for ThreadSanitizer: what happened before a release happens before a later acquire.
inline void release(void* address) {
    (void)address;
#ifdef CUSIM_TSAN
    __tsan_release(address);
#endif
}
inline void acquire(void* address) {
    (void)address;
#ifdef CUSIM_TSAN
    __tsan_acquire(address);
#endif
}

#if defined(__x86_64__)
// Saves the registers that a function must preserve and the stack pointer, and takes up another stack.
extern "C" void cusim_switch(void** from, void* to);
#endif

class Fiber {
   public:
    static constexpr std::size_t kStack = 256 << 10;

    // The thread of the program itself.
    Fiber() {
#ifdef CUSIM_TSAN
        sanitizer_ = __tsan_get_current_fiber();
#endif
    }

    // A fiber that calls entry, which never returns.
    explicit Fiber(void (*entry)()) : entry_(entry) {
        void* memory = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) abort();
        stack_ = static_cast<char*>(memory);
#ifdef CUSIM_TSAN
        sanitizer_ = __tsan_create_fiber(0);
#endif
        restart();
    }

    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    // From the beginning again, on the same stack: creating one costs more than running a kernel.
    void restart() {
#ifdef CUSIM_ASAN
        ASAN_UNPOISON_MEMORY_REGION(stack_, kStack);
#endif
#if defined(__x86_64__)
        void** top = reinterpret_cast<void**>(stack_ + kStack);
        *--top = nullptr;
        *--top = reinterpret_cast<void*>(entry_);
        top -= 6;
        memset(top, 0, 6 * sizeof *top);
        place_ = top;
#else
        getcontext(&place_);
        place_.uc_stack.ss_sp = stack_;
        place_.uc_stack.ss_size = kStack;
        place_.uc_link = nullptr;
        makecontext(&place_, entry_, 0);
#endif
    }

    // To be called first by an entry.
    static void arrived() {
#ifdef CUSIM_ASAN
        __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    }

    // Leaves this fiber, which is running, for another; returns when something switches back.
    void switch_to(Fiber& other) {
#ifdef CUSIM_TSAN
        __tsan_switch_to_fiber(other.sanitizer_, 1);  // 1: no order between the two
#endif
#ifdef CUSIM_ASAN
        void* fake = nullptr;
        __sanitizer_start_switch_fiber(&fake, other.stack_, other.stack_ ? kStack : 0);
#endif
#if defined(__x86_64__)
        cusim_switch(&place_, other.place_);
#else
        swapcontext(&place_, &other.place_);
#endif
#ifdef CUSIM_ASAN
        __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    }

   private:
    void (*entry_)() = nullptr;
    char* stack_ = nullptr;
    void* sanitizer_ = nullptr;
#if defined(__x86_64__)
    void* place_ = nullptr;
#else
    ucontext_t place_;
#endif
};

}  // namespace cusim
