// One parallel region at a time. The caller works too; helpers join while tasks are left. A caller that finds the pool
// busy (another Python thread is in it) runs its tasks alone: nobody waits, and results do not depend on who helped.
#include "threads.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "onepass/cpu/threads.h"
#include "poison.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace onepass {
namespace {

void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// A helper that ran out of work looks for more this many times (about 50 us) before it sleeps: calls often come in
// series, and waking a sleeper costs more than most calls. Nobody spins longer.
constexpr int kSpins = 1500;

// Which of a region's shares a thread begins with: the caller with the first, every helper with the same one each time.
// What it has read or written in one call it then finds in its own caches in the next.
int number_of_this_helper() {
    static std::atomic<int> helpers{0};
    static thread_local const int number = helpers.fetch_add(1, std::memory_order_relaxed);
    return number;
}

class Region {
   public:
    Region(void (*run)(void*, std::int64_t, std::int64_t), void* context, std::int64_t tasks, std::int64_t grain,
           int shares)
        : run_(run),
          context_(context),
          tasks_(tasks),
          grain_(grain),
          count_(shares),
          shares_(new Share[static_cast<unsigned>(shares)]) {
        const std::int64_t runs = (tasks + grain - 1) / grain;
        for (int i = 0; i < count_; ++i) {
            shares_[i].next = runs * i / count_ * grain;
            const std::int64_t end = runs * (i + 1) / count_ * grain;
            shares_[i].end = end < tasks ? end : tasks;
        }
    }

    // The thread's own share, from its beginning; then what is left of the others'. between() is called after every run
    // of tasks.
    template <class Between>
    void work(Between&& between) noexcept {
        const int first = pthread_equal(pthread_self(), caller_) ? 0 : 1 + number_of_this_helper() % (count_ - 1);
        for (int i = 0; i < count_; ++i) drain(shares_[(first + i) % count_], between);
    }
    void work() noexcept {
        work([] {});
    }

    std::int64_t tasks() const { return tasks_; }
    // The same for regions that are alike, of one operation and one shape for instance; rarely for others.
    std::size_t key() const {
        const auto run = reinterpret_cast<std::uintptr_t>(run_) / 16;
        return run + 31 * static_cast<std::size_t>(tasks_) + 7 * static_cast<std::size_t>(grain_);
    }

    // Tasks that nobody has taken.
    std::int64_t left() const {
        std::int64_t sum = 0;
        for (int i = 0; i < count_; ++i) {
            const std::int64_t next = shares_[i].next.load(std::memory_order_relaxed);
            if (next < shares_[i].end) sum += shares_[i].end - next;
        }
        return sum;
    }

    void rethrow_failure() const {
        if (failure_) std::rethrow_exception(failure_);
    }

   private:
    struct alignas(64) Share {
        std::atomic<std::int64_t> next;
        std::int64_t end;
    };

    template <class Between>
    void drain(Share& share, Between&& between) noexcept {
        // Looked at first: of many threads that are done each would else write to every share.
        while (share.next.load(std::memory_order_relaxed) < share.end) {
            const std::int64_t begin = share.next.fetch_add(grain_, std::memory_order_relaxed);
            if (begin >= share.end || failed_.load(std::memory_order_relaxed)) return;
            const std::int64_t end = begin + grain_ < share.end ? begin + grain_ : share.end;
            try {
                run_(context_, begin, end);
            } catch (...) {
                std::lock_guard lock(failure_mutex_);
                if (!failure_) failure_ = std::current_exception();
                failed_.store(true, std::memory_order_relaxed);
            }
            between();
        }
    }

    void (*run_)(void*, std::int64_t, std::int64_t);
    void* context_;
    std::int64_t tasks_;
    std::int64_t grain_;
    int count_;
    std::unique_ptr<Share[]> shares_;
    const pthread_t caller_ = pthread_self();
    std::atomic<bool> failed_{false};
    std::mutex failure_mutex_;
    std::exception_ptr failure_;
};

thread_local bool is_helper = false;
thread_local ThreadLender lender = nullptr;
// No library's threads outlive a fork, and not every library knows.
std::atomic<bool> may_borrow{true};

void run_on_borrowed(Region& region, int threads) {
    const auto work = [](void* context) {
        const bool before = std::exchange(is_helper, true);
        static_cast<Region*>(context)->work();
        is_helper = before;
    };
    lender(threads, work, &region);
    work(&region);  // what is left where the lender gave no thread
}

class Pool {
   public:
    void run(Region& region, int threads) {
        std::unique_lock busy(busy_, std::try_to_lock);
        if (!busy.owns_lock()) return region.work();
        grow(threads - 1);
        const std::int64_t begin = now();
        series_ = begin - end_ < kInSeries ? std::min(series_ + 1, kSeries) : 0;
        const int places = std::min(threads - 1, helpers_);
        open(region, places);
        int wanted = places - (helpers_ - sleepers_.load());  // of those that sleep
        double& usual = usual_[region.key() % kKnown];
        if (wanted > 0 && (series_ == kSeries || is_worth_waking(usual))) {
            wake(std::exchange(wanted, 0));
            usual -= usual / 8;  // it is measured anew now and then, without what waking takes
        }
        region.work([&] {
            if (wanted <= 0) return;
            const std::int64_t left = region.left(), done = region.tasks() - left;
            const auto took = static_cast<double>(now() - begin);
            const double for_each = took / static_cast<double>(done);
            usual = for_each * static_cast<double>(region.tasks());
            // The first tasks of a call by itself are slow: the others are not taken for as slow too soon.
            if (took < waking_takes() / 2) return;
            if (is_worth_waking(for_each * static_cast<double>(left))) wake(std::exchange(wanted, 0));
        });
        close(places);
        end_ = now();
    }

   private:
    // Calls that follow each other so soon are a series, for which sleepers are woken at once, from so many on. Alone a
    // call wakes them when it knows that it takes long: what is left of it, by one thread, so many times what it took
    // sleepers to come, which differs by ten times from one system to the next. It knows from the last call like it,
    // else from its own first tasks, of which it may not have many: two of log_softmax of 4096x256, dim 0, which then
    // took as long by two threads as by one. Measured in virtual machines, calls 400 us after the one before, us by one
    // thread and by all when they were woken at once, sums of 32x1024 float32 8 and 139 with two threads of a Zen 3, of
    // 64x1024 5 and 26 with sixteen of a Xeon; they take 5 and 4 now.
    static constexpr std::int64_t kInSeries = 50'000;  // ns
    static constexpr int kSeries = 3;
    static constexpr double kWorthWaking = 2;
    static constexpr std::int64_t kLongestWaking = 200'000;  // one that was slow must not stand for all
    static constexpr std::size_t kKnown = 256;

    double waking_takes() const { return static_cast<double>(waking_takes_.load(std::memory_order_relaxed)); }
    bool is_worth_waking(double nanoseconds) const { return nanoseconds > kWorthWaking * waking_takes(); }

    // The region's places, under a number of its own: helpers take them from one word, so that none that comes late
    // looks at a region that has ended.
    static constexpr std::uint64_t kOnePlace = 1, kPlaces = 0xffff, kNext = 0x10000;
    static std::uint64_t number_of(std::uint64_t state) { return state / kNext; }

    void open(Region& region, int places) {
        region_ = &region;
        left_.store(0, std::memory_order_relaxed);
        const std::uint64_t next = (number_of(state_.load(std::memory_order_relaxed)) + 1) * kNext;
        state_.store(next + static_cast<std::uint64_t>(places));
    }
    // Nobody comes any more; those that came are waited for.
    void close(int places) {
        const std::uint64_t before = state_.fetch_and(~kPlaces, std::memory_order_acq_rel);
        const int came = places - static_cast<int>(before & kPlaces);
        for (int spins = 0; left_.load(std::memory_order_acquire) < came; ++spins) {
            if (spins < kSpins) {
                relax();
            } else {
                std::this_thread::yield();
            }
        }
    }
    // A place in the region with this number, if there is one left.
    bool take_place(std::uint64_t state) {
        const std::uint64_t number = number_of(state);
        while (number_of(state) == number && (state & kPlaces) > 0) {
            if (state_.compare_exchange_weak(state, state - kOnePlace, std::memory_order_acq_rel)) return true;
        }
        return false;
    }

    void wake(int sleepers) {
        const std::int64_t begin = now(), before = woken_at_.load(std::memory_order_relaxed);
        if (before > 0 && begin - before < kLongestWaking) return;  // they are on their way
        woken_at_.store(begin, std::memory_order_relaxed);
        {
            std::lock_guard lock(mutex_);  // a helper that is about to sleep does, and is woken, or has seen the region
        }
        if (sleepers < sleepers_.load()) {
            for (int i = 0; i < sleepers; ++i) wake_.notify_one();
        } else {
            wake_.notify_all();
        }
    }
    // The first to come says how long that took.
    void note_waking() {
        const std::int64_t begin = woken_at_.exchange(0, std::memory_order_relaxed);
        if (begin == 0) return;
        const std::int64_t took = std::min(now() - begin, kLongestWaking), before = waking_takes_.load();
        waking_takes_.store(before + (took - before) / 4, std::memory_order_relaxed);
    }
    static std::int64_t now() {
        return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    }

    // A system that refuses more threads leaves us with those there are.
    void grow(int helpers) {
        while (helpers_ < helpers) {
            try {
                std::thread([this] { help(); }).detach();
                ++helpers_;
            } catch (const std::system_error&) {
                return;
            }
        }
    }

    void help() {
        is_helper = true;
        std::uint64_t seen = 0;
        const auto news = [&] { return number_of(state_.load()) != seen; };
        for (;;) {
            for (int spins = 0; spins < kSpins && !news(); ++spins) relax();
            if (!news()) {
                std::unique_lock lock(mutex_);
                sleepers_.fetch_add(1);
                const bool sleeps = !news();
                wake_.wait(lock, news);
                sleepers_.fetch_sub(1);
                if (sleeps) note_waking();
            }
            const std::uint64_t state = state_.load(std::memory_order_acquire);
            seen = number_of(state);
            if (!take_place(state)) continue;
            region_->work();
            left_.fetch_add(1, std::memory_order_release);
        }
    }

    std::mutex busy_;  // held by the caller whose region runs, who alone changes what follows up to `mutex_`
    int helpers_ = 0;
    int series_ = 0;
    std::int64_t end_ = 0;
    double usual_[kKnown] = {};  // ns that a region with such a key takes by one thread
    Region* region_ = nullptr;
    std::mutex mutex_;  // of those who go to sleep
    std::condition_variable wake_;
    std::atomic<int> sleepers_{0};
    std::atomic<std::int64_t> woken_at_{0}, waking_takes_{40'000};  // ns
    alignas(64) std::atomic<std::uint64_t> state_{0};
    std::atomic<int> left_{0};  // helpers that have done their part
};

// Never destroyed: helpers may still sleep in it when the process ends. A forked child has no helpers and must not
// touch locks that another thread may have held, so it gets a new pool and leaves the old one behind.
std::atomic<Pool*> the_pool{nullptr};

Pool& pool() { return *the_pool.load(std::memory_order_acquire); }

std::atomic<int> thread_count{0};

class ThreadScratch {
   public:
    ~ThreadScratch() {
        for (void* p : memory_) std::free(p);
    }
    void* at_least(Scratch slot, std::size_t bytes) {
        const auto i = static_cast<std::size_t>(slot);
        if (size_[i] < bytes) {
            std::free(memory_[i]);
            size_[i] = 0;
            const std::size_t rounded = (bytes + 4095) / 4096 * 4096;
            memory_[i] = std::aligned_alloc(4096, rounded);
            if (!memory_[i]) throw std::bad_alloc();
            size_[i] = rounded;
        }
        allow_only(memory_[i], bytes, size_[i]);
        return memory_[i];
    }

   private:
    static constexpr std::size_t kSlots = static_cast<std::size_t>(Scratch::gathered_results) + 1;
    void* memory_[kSlots] = {};
    std::size_t size_[kSlots] = {};
};

}  // namespace

// At import, before there can be a fork beside a first call: a child that inherits a half-made pool waits for ever.
void prepare_threads() {
    if (the_pool.load()) return;
    the_pool = new Pool;
    pthread_atfork(nullptr, nullptr, [] {
        the_pool = new Pool;
        is_helper = false;
        may_borrow = false;
    });
}

void parallel_for(std::int64_t tasks, std::int64_t grain, int threads, void (*run)(void*, std::int64_t, std::int64_t),
                  void* context) {
    if (tasks <= 0) return;
    if (threads <= 1 || tasks <= grain || is_helper) return run(context, 0, tasks);
    const std::int64_t runs = (tasks + grain - 1) / grain;
    const int useful = runs < threads ? static_cast<int>(runs) : threads;
    Region region(run, context, tasks, grain, useful);
    if (lender && may_borrow.load(std::memory_order_relaxed)) {
        run_on_borrowed(region, useful);
    } else {
        pool().run(region, useful);
    }
    region.rethrow_failure();
}

void* scratch(Scratch slot, std::size_t bytes) {
    static thread_local ThreadScratch memory;
    return memory.at_least(slot, bytes);
}

BorrowedThreads::BorrowedThreads(ThreadLender from) : before_(std::exchange(lender, from)) {}
BorrowedThreads::~BorrowedThreads() { lender = before_; }

void set_num_threads(int n) { thread_count = n; }
int get_num_threads() { return thread_count; }

}  // namespace onepass
