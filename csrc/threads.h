// The engine's thread pool: control side. The kernels see onepass/cpu/threads.h.
#pragma once

namespace onepass {

void prepare_threads();       // once, before any other call
void set_num_threads(int n);  // n >= 1
int get_num_threads();

// Runs `work(context)` on up to so many threads at once, the calling one among them, and waits for all.
using ThreadLender = void (*)(int threads, void (*work)(void* context), void* context);

// While one of these lives, parallel regions of this thread run on the threads of its lender, not on the pool's: those
// of the library that calls spin for a while after each of its own regions, and would be in the way of others.
class BorrowedThreads {
   public:
    explicit BorrowedThreads(ThreadLender lender);  // null: the pool's
    ~BorrowedThreads();
    BorrowedThreads(const BorrowedThreads&) = delete;
    BorrowedThreads& operator=(const BorrowedThreads&) = delete;

   private:
    ThreadLender before_;
};

}  // namespace onepass
