// Runs a launch, its threads as fibers. Compiled without instrumentation: what threads tell each other through the
// scheduler must not look like communication to ThreadSanitizer.
//
// Blocks are run one after the other, those of a cluster together, or all at once where the launch is cooperative. Memory and barriers belong to
// blocks, the ready threads to those that run together.
#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "cusim.h"
#include "fiber.h"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

#if defined(__x86_64__)
asm(R"(
.text
.globl cusim_switch
.type cusim_switch, @function
cusim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cusim_switch, .-cusim_switch
)");
#endif

namespace cusim {
namespace {

// Threads that wait for each other: a block at a barrier, a warp in a shuffle. Generations alternate between two places
// for what they exchange: whoever is slow to read one cannot be two behind.
struct Meeting {
    unsigned size;
    unsigned arrived = 0;
    unsigned generation = 0;
    Site site{};
    unsigned value[2][32] = {};
    char order[2] = {};
};

struct Block;
struct Cluster;

struct Thread {
    Fiber fiber;
    View view{};
    Block* block = nullptr;
    Meeting* waits_at = nullptr;
    unsigned generation = 0;
    unsigned cluster_generation = 0;
    Site site{};
    bool done = false;
    bool spins = false;  // waits for what another thread stores
    std::vector<Copy> copies;

    explicit Thread(void (*entry)()) : fiber(entry) {}
    bool ready() const { return !done && (!waits_at || waits_at->generation != generation); }
};

// Shared memory: full of NaN, of any type, and what has not been given out is out of bounds for AddressSanitizer.
class Memory {
   public:
    explicit Memory(std::size_t bytes) : bytes_(bytes) {
        void* memory = nullptr;
        if (posix_memalign(&memory, 128, bytes + kGap) != 0) abort();
        memory_ = static_cast<unsigned char*>(memory);
        memset(memory_, 0xff, bytes);
#ifdef CUSIM_ASAN
        ASAN_POISON_MEMORY_REGION(memory_, bytes + kGap);
#endif
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() {
#ifdef CUSIM_ASAN
        ASAN_UNPOISON_MEMORY_REGION(memory_, bytes_ + kGap);
#endif
        free(memory_);
    }

    void* take(std::size_t bytes) {
        unsigned char* place = memory_ + used_;
        used_ += (bytes + kGap + 127) / 128 * 128;
        if (place + bytes > memory_ + bytes_) abort();
#ifdef CUSIM_ASAN
        ASAN_UNPOISON_MEMORY_REGION(place, bytes);
#endif
        return place;
    }

    // What is where `place` is in that memory.
    void* at_same_place(const Memory& that, const void* place) const {
        const auto offset = static_cast<std::size_t>(static_cast<const unsigned char*>(place) - that.memory_);
        return offset < bytes_ ? memory_ + offset : nullptr;
    }

   private:
    static constexpr std::size_t kGap = 64;
    std::size_t bytes_;
    std::size_t used_ = 0;
    unsigned char* memory_;
};

// A barrier in shared memory: its phase is over when `pending` threads have arrived, and as many bytes as were expected.
struct Phases {
    unsigned threads;
    unsigned pending;
    std::int64_t bytes = 0;  // expected and not there yet; below zero: there and not expected yet
    unsigned over = 0;       // phases
    std::vector<Store> under_way{};
    char order[2] = {};

    void advance() {
        if (pending || bytes) return;
        pending = threads;
        ++over;
    }
};

struct Block {
    Cluster* cluster = nullptr;
    unsigned running;  // threads
    Meeting barrier;
    std::vector<Meeting> warps;
    Memory memory;  // of its variables and the dynamic part
    void* dynamic = nullptr;
    std::map<const void*, void*> variables;
    std::map<const void*, Phases> phases;

    Block(unsigned threads, std::size_t dynamic_bytes)
        : running(threads),
          barrier{threads},
          warps(threads / 32, Meeting{32}),
          memory(kVariables + dynamic_bytes),
          dynamic(memory.take(dynamic_bytes)) {}

    static constexpr std::size_t kVariables = 64 << 10;
};

struct Cluster {
    Meeting meeting;
    std::vector<Block*> blocks{};
};

struct {
    Fiber program;
    std::vector<std::unique_ptr<Thread>> pool;
    Thread* current = nullptr;
    void (*kernel)(const void*) = nullptr;
    const void* argument = nullptr;
    std::uint64_t random = 1;
    char message[512] = {};
    bool failed = false;
    char order = 0;
} world;

std::uint64_t next_random() {
    world.random ^= world.random << 13;
    world.random ^= world.random >> 7;
    world.random ^= world.random << 17;
    return world.random;
}

template <class T>
void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[next_random() % i]);
}

void report(const char* message, Site site, const char* more = "") {
    if (world.failed) return;
    world.failed = true;
    const char* slash = strrchr(site.file, '/');
    snprintf(world.message, sizeof world.message, "%s at %s:%d, block %u thread %u%s", message,
             slash ? slash + 1 : site.file, site.line, world.current->view.block.x, world.current->view.thread.x, more);
}

void leave() { world.current->fiber.switch_to(world.program); }

void entry() {
    Fiber::arrived();
    acquire(&world.order);
    world.kernel(world.argument);
    release(&world.order);
    world.current->done = true;
    leave();
    abort();
}

// Waits until that generation of a meeting is over.
void wait(Meeting& meeting, unsigned generation, Site site) {
    Thread& me = *world.current;
    me.waits_at = &meeting;
    me.generation = generation;
    me.site = site;
    leave();
    me.waits_at = nullptr;
}

// Waits until all have arrived. Returns the place of this generation.
unsigned meet(Meeting& meeting, Site site, bool orders) {
    const unsigned generation = meeting.generation, place = generation & 1;
    if (meeting.arrived && (meeting.site.line != site.line || strcmp(meeting.site.file, site.file) != 0)) {
        char other[96];
        snprintf(other, sizeof other, ": others of its group are at line %d", meeting.site.line);
        report("divergence", site, other);
    }
    meeting.site = site;
    if (orders) release(&meeting.order[place]);
    if (++meeting.arrived == meeting.size) {
        meeting.arrived = 0;
        ++meeting.generation;
    }
    wait(meeting, generation, site);
    if (orders) acquire(&meeting.order[place]);
    return place;
}

// One slice of every ready thread, in random order. Whether one of them got further than a look at what it waits for.
bool run_slices(std::vector<Thread*>& threads, std::size_t& left) {
    bool any = false;
    shuffle(threads);
    for (Thread* thread : threads) {
        if (!thread->ready()) continue;
        world.current = thread;
        thread->spins = false;
        world.program.switch_to(thread->fiber);
        if (world.failed) return false;
        any |= !thread->spins;
        if (!thread->done) continue;
        --left;
        --thread->block->running;
    }
    return any;
}

void run_blocks(const Launch& launch, unsigned first, unsigned count) {
    const bool greedy = launch.seed % 2 == 1;
    const unsigned warps = launch.threads / 32, threads = count * launch.threads;
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<std::unique_ptr<Cluster>> clusters;
    for (unsigned b = 0; b < count; ++b) {
        blocks.push_back(std::make_unique<Block>(launch.threads, launch.shared_bytes));
        if (b % launch.cluster == 0)
            clusters.push_back(std::make_unique<Cluster>(Meeting{launch.cluster * launch.threads}));
        clusters.back()->blocks.push_back(blocks.back().get());
        blocks.back()->cluster = clusters.back().get();
    }
    // Greedy: a warp runs until it waits for another, so that it may be a whole phase ahead.
    std::vector<std::vector<Thread*>> queues(greedy ? count * warps : 1);
    while (world.pool.size() < threads) world.pool.push_back(std::make_unique<Thread>(entry));
    for (unsigned i = 0; i < threads; ++i) {
        Thread& thread = *world.pool[i];
        const unsigned b = i / launch.threads, t = i % launch.threads;
        thread.fiber.restart();
        thread.view = {{t, 0, 0}, {first + b, 0, 0}, {launch.threads, 1, 1}, {launch.grid, 1, 1}, t % 32};
        thread.block = blocks[b].get();
        thread.waits_at = nullptr;
        thread.done = false;
        thread.copies.clear();
        queues[greedy ? i / 32 : 0].push_back(&thread);
    }
    release(&world.order);
    std::size_t left = threads;
    bool waited = false;
    while (left && !world.failed) {
        if (next_random() % 8 == 0) shuffle(queues);
        const bool any =
            std::any_of(queues.begin(), queues.end(), [&](auto& queue) { return run_slices(queue, left); });
        // What a thread waits for may have been stored after its look: all that spin look once more.
        const bool once_more = !any && !waited;
        waited = !any;
        if (any || once_more || world.failed || !left) continue;
        for (unsigned i = 0; i < threads; ++i) {
            world.current = world.pool[i].get();
            if (!world.current->done) break;
        }
        char more[96];
        snprintf(more, sizeof more, ": waits for ever, as do %zu threads of %u", left, threads);
        report("deadlock", world.current->site, more);
    }
    for (const auto& block : blocks) {
        for (const auto& [barrier, phases] : block->phases) {
            if (!phases.under_way.empty()) report("a store arrives after its block has ended", world.current->site);
        }
    }
    acquire(&world.order);
}

// A barrier of a block, which must have been initialized.
Phases& phases_of(Block& block, const void* barrier, Site site) {
    const auto found = block.phases.find(barrier);
    if (found == block.phases.end()) fail("a barrier that has not been initialized", site);
    return found->second;
}

Block& peer(unsigned rank, Site site) {
    const auto& blocks = world.current->block->cluster->blocks;
    if (rank >= blocks.size()) fail("a block that is not of the cluster", site);
    return *blocks[rank];
}

}  // namespace

const View& view() { return world.current->view; }

void barrier(Site site) { meet(world.current->block->barrier, site, true); }

void warp_barrier(Site site) {
    const Thread& me = *world.current;
    meet(me.block->warps[me.view.thread.x / 32], site, true);
}

void cluster_arrive() {
    Thread& me = *world.current;
    Meeting& meeting = me.block->cluster->meeting;
    release(&meeting.order[meeting.generation & 1]);
    me.cluster_generation = meeting.generation;
    if (++meeting.arrived == meeting.size) {
        meeting.arrived = 0;
        ++meeting.generation;
    }
}

void cluster_wait(Site site) {
    Thread& me = *world.current;
    Meeting& meeting = me.block->cluster->meeting;
    wait(meeting, me.cluster_generation, site);
    acquire(&meeting.order[me.cluster_generation & 1]);
}

void init_phases(const void* barrier, unsigned threads) {
    world.current->block->phases.insert_or_assign(barrier, Phases{threads, threads});
}

void expect(const void* barrier, unsigned bytes, Site site) {
    Phases& phases = phases_of(*world.current->block, barrier, site);
    release(&phases.order[phases.over & 1]);
    phases.bytes += bytes;
    --phases.pending;
    phases.advance();
}

unsigned long long* elsewhere(const unsigned long long* here, unsigned rank, Site site) {
    void* const there = peer(rank, site).memory.at_same_place(world.current->block->memory, here);
    if (!there) fail("not in shared memory", site);
    return static_cast<unsigned long long*>(there);
}

void send(const Store& store, const void* barrier, unsigned rank, Site site) {
    Block& block = peer(rank, site);
    if (!block.running) fail("a store into a block that has ended", site);
    Phases& phases = phases_of(block, block.memory.at_same_place(world.current->block->memory, barrier), site);
    release(&phases.order[phases.over & 1]);
    phases.under_way.push_back(store);
}

bool over(const void* barrier, unsigned parity, Site site) {
    Phases& phases = phases_of(*world.current->block, barrier, site);
    if ((phases.over & 1) == parity) return false;
    acquire(&phases.order[parity]);
    return true;
}

bool receive(const void* barrier, Store& store) {
    Phases& phases = world.current->block->phases.at(barrier);
    if (phases.under_way.empty()) return false;
    std::swap(phases.under_way[next_random() % phases.under_way.size()], phases.under_way.back());
    store = phases.under_way.back();
    phases.under_way.pop_back();
    acquire(&phases.order[phases.over & 1]);
    return true;
}

void count(const void* barrier, unsigned bytes) {
    Phases& phases = world.current->block->phases.at(barrier);
    release(&phases.order[phases.over & 1]);
    phases.bytes -= bytes;
    phases.advance();
}

// Orders nothing: a shuffle is no fence.
unsigned exchange(unsigned mask, unsigned value, int source, Site site) {
    if (mask != 0xffffffffu) fail("a shuffle of less than the warp is not modelled", site);
    Thread& me = *world.current;
    Meeting& warp = me.block->warps[me.view.thread.x / 32];
    warp.value[warp.generation & 1][me.view.lane] = value;
    const unsigned place = meet(warp, site, false);
    return source < 0 ? value : warp.value[place][source];
}

void yield(Site site) {
    world.current->site = site;
    leave();
}

void spin(Site site) {
    world.current->spins = true;
    yield(site);
}

std::vector<Copy>& copies() { return world.current->copies; }

void fail(const char* message, Site site) {
    report(message, site);
    leave();
    abort();
}

void* dynamic_memory() { return world.current->block->dynamic; }

void* variable(const void* key, std::size_t bytes) {
    Block& block = *world.current->block;
    void*& place = block.variables[key];
    if (!place) place = block.memory.take(bytes);
    return place;
}

const char* run(const Launch& launch, void (*kernel)(const void*), const void* argument) {
    if (launch.threads % 32 != 0 || launch.threads == 0 || launch.threads > 1024)
        return "threads: not 32..1024 in whole warps";
    world.kernel = kernel;
    world.argument = argument;
    world.random = launch.seed * 0x9e3779b97f4a7c15u + 88172645463325252u;
    world.failed = false;
    if (launch.grid % launch.cluster != 0) return "the grid is not whole clusters";
    const unsigned together = launch.cooperative ? launch.grid : launch.cluster;
    for (unsigned block = 0; block < launch.grid && !world.failed; block += together)
        run_blocks(launch, block, together);
    return world.failed ? world.message : nullptr;
}

}  // namespace cusim
