// The pool and the block cache by themselves, from threads that hold no interpreter's lock: tools/sanitize.sh builds
// this with csrc/threads.cpp and csrc/memory.cpp under each sanitizer. `fork`: forked children join in. Not under
// AddressSanitizer or ThreadSanitizer, whose own locks a child may inherit locked.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "memory.h"
#include "onepass/cpu/threads.h"
#include "threads.h"

namespace {

constexpr unsigned kMostSeconds = 120;  // of a run that takes two: what hangs is ended

std::atomic<int> failures{0};

void expect(bool right, const char* what) {
    if (!right && failures.fetch_add(1) < 10) std::fprintf(stderr, "wrong: %s\n", what);
}

// A block whose first and last bytes, and one in each 64 KiB between, say whose it is.
struct Marked {
    unsigned char* block;
    std::size_t bytes;
    unsigned char mark;

    template <class F>
    void each(F&& f) const {
        for (std::size_t i = 0; i < bytes; i += std::size_t{64} << 10) f(block[i]);
        f(block[bytes - 1]);
    }
    void write() const {
        each([this](unsigned char& byte) { byte = mark; });
    }
    void check() const {
        each([this](unsigned char& byte) { expect(byte == mark, "a block was handed out twice"); });
    }
};

// Blocks that change hands: given back by another thread than the one that took them.
std::mutex exchange_mutex;
std::vector<Marked> exchange;

void use_blocks(unsigned seed, int rounds) {
    std::mt19937 random(seed);
    for (int i = 0; i < rounds; ++i) {
        const std::size_t bytes = onepass::kSmallestBlock + random() % (std::size_t{5} << 20);
        Marked mine{static_cast<unsigned char*>(onepass::take_block(bytes)), bytes,
                    static_cast<unsigned char>(random())};
        if (!mine.block) {
            expect(false, "no block");
            return;
        }
        mine.write();
        {
            std::lock_guard lock(exchange_mutex);
            if (exchange.size() < 12) {
                exchange.push_back(mine);
                continue;
            }
            std::swap(mine, exchange[random() % exchange.size()]);
        }
        mine.check();
        onepass::give_block(mine.block);
        if (i % 17 == 0) onepass::empty_cache();
        if (i % 23 == 0) onepass::set_cache_bound((std::size_t{random() % 40}) << 20);
        const onepass::MemoryStats stats = onepass::memory_stats();
        expect(stats.cached_bytes <= stats.bound_bytes, "more is cached than the bound");
    }
}

void use_pool(unsigned seed, int rounds) {
    std::mt19937 random(seed);
    for (int i = 0; i < rounds; ++i) {
        onepass::set_num_threads(1 + static_cast<int>(random() % 7));
        const auto tasks = static_cast<std::int64_t>(random() % 300);
        const auto grain = static_cast<std::int64_t>(1 + random() % 5);
        std::vector<int> visits(static_cast<std::size_t>(tasks));  // not atomic: each task belongs to one thread
        auto visit = [&](std::int64_t begin, std::int64_t end) {
            auto* mine = static_cast<int*>(onepass::scratch(onepass::Scratch::values, 256 * sizeof(int)));
            for (std::int64_t t = begin; t < end; ++t) {
                mine[t % 256] = static_cast<int>(t);
                visits[static_cast<std::size_t>(t)] += mine[t % 256] == t ? 1 : 1000;
                if (t % 64 == 0) {  // a region inside a region
                    int inner = 0;
                    auto count = [&](std::int64_t b, std::int64_t e) { inner += static_cast<int>(e - b); };
                    onepass::parallel_ranges(3, 1, 1, count);
                    if (inner != 3) visits[static_cast<std::size_t>(t)] += 1000;
                }
            }
        };
        onepass::parallel_ranges(tasks, grain, onepass::get_num_threads(), visit);
        for (int n : visits) expect(n == 1, "a task ran other than once");
        auto fail = [&](std::int64_t, std::int64_t end) {
            if (end > tasks / 2) throw std::runtime_error("on purpose");
        };
        bool thrown = false;
        try {
            onepass::parallel_ranges(tasks, grain, onepass::get_num_threads(), fail);
        } catch (const std::runtime_error&) {
            thrown = true;
        }
        expect(thrown == (tasks > 0), "the exception of a task did not arrive");
    }
}

void use_both(unsigned seed, int rounds) {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 4; ++i) {
        threads.emplace_back(use_blocks, seed + i, rounds);
        threads.emplace_back(use_pool, seed + 100 + i, rounds);
    }
    for (std::thread& t : threads) t.join();
}

// Forked while other threads are in the middle of both. The child has its own pool, and its copy of the cache.
pid_t child(unsigned seed) {
    std::unique_lock lock(exchange_mutex);
    const pid_t pid = fork();
    if (pid != 0) return pid;
    exchange.clear();
    lock.unlock();
    alarm(kMostSeconds);
    failures = 0;
    use_both(seed, 30);
    _exit(failures == 0 ? 0 : 1);
}

}  // namespace

int main(int argument_count, char**) {
    alarm(kMostSeconds);
    const bool forks = argument_count > 1;
    onepass::prepare_threads();
    onepass::set_cache_bound(std::size_t{32} << 20);
    for (unsigned wave = 0; wave < 3; ++wave) {
        std::thread both(use_both, 1000 * wave, 120);
        std::vector<pid_t> children;
        for (unsigned i = 0; forks && i < 3; ++i) {
            usleep(5000);
            children.push_back(child(50 * wave + i));
        }
        both.join();
        for (pid_t pid : children) {
            int status = 1;
            waitpid(pid, &status, 0);
            expect(status == 0, "a forked child failed");
        }
    }
    for (const Marked& left : exchange) {
        left.check();
        onepass::give_block(left.block);
    }
    onepass::empty_cache();
    const onepass::MemoryStats stats = onepass::memory_stats();
    expect(stats.live_blocks == 0 && stats.live_bytes == 0, "blocks are counted that were given back");
    expect(stats.cached_blocks == 0 && stats.cached_bytes == 0, "blocks are kept after empty_cache");
    std::printf("pool and block cache: %s\n", failures == 0 ? "no wrong result" : "FAILED");
    return failures == 0 ? 0 : 1;
}
