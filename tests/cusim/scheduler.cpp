// Runs a launch, its threads as fibers. Compiled without instrumentation: what threads tell each other through the
// scheduler must not look like communication to ThreadSanitizer.
//
// Blocks are run one after the other, those of a cluster together, or all at once where the launch is cooperative.
// Memory and barriers belong to blocks, the ready threads to those that run together.
#include <algorithm>
#include <memory>
#include <vector>

#include "blocks.h"
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
        if (!block->arriving.empty()) report("a store arrives after its block has ended", world.current->site);
    }
    acquire(&world.order);
}

// A barrier of a block, which must have been initialized.
Phases& phases_of(Block& block, const void* barrier, Site site) {
    const auto found =
        std::find_if(block.phases.begin(), block.phases.end(), [&](auto& phases) { return phases.barrier == barrier; });
    if (found == block.phases.end()) fail("a barrier that has not been initialized", site);
    return *found;
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
    auto& phases = world.current->block->phases;
    if (phases.size() == Block::kPhases) fail("more barriers than are modelled", here());
    phases.push_back({barrier, threads, threads});
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
    const void* const there = block.memory.at_same_place(world.current->block->memory, barrier);
    Phases& phases = phases_of(block, there, site);
    if (block.arriving.size() == Block::kArriving) fail("more stores under way than are modelled", site);
    release(&phases.order[phases.over & 1]);
    block.arriving.push_back({there, store});
}

bool over(const void* barrier, unsigned parity, Site site) {
    Phases& phases = phases_of(*world.current->block, barrier, site);
    if ((phases.over & 1) == parity) return false;
    acquire(&phases.order[parity]);
    return true;
}

bool receive(const void* barrier, Store& store) {
    auto& arriving = world.current->block->arriving;
    const std::size_t any = next_random();
    for (std::size_t i = 0; i < arriving.size(); ++i) {
        Arriving& one = arriving[(any + i) % arriving.size()];
        if (one.barrier != barrier) continue;
        store = one.store;
        one = arriving.back();
        arriving.pop_back();
        Phases& phases = phases_of(*world.current->block, barrier, here());
        acquire(&phases.order[phases.over & 1]);
        return true;
    }
    return false;
}

void count(const void* barrier, unsigned bytes) {
    Phases& phases = phases_of(*world.current->block, barrier, here());
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
