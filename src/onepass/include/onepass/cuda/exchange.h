// What blocks that share a row tell each other: each publishes a state of a few words, and gets those of all others.
//
// No flags and no fences: a word travels with the number of the exchange it belongs to, 8 bytes that arrive as one, and
// whoever polls a slot takes it once all its words carry the number that it waits for. The idea is that of NCCL's LL
// protocol. It needs every block of a team to be at work at once: the launch is a cooperative one.
//
// Numbers come from a counter in the scratch memory itself, which the last block to leave puts forward: nothing has to
// be cleared between launches, and a launch that is replayed by a graph finds what one that is called finds. Launches
// that share scratch memory, of whatever size, must come one after the other.
#pragma once

#include "reduce.h"

namespace onepass::cuda {

// What the host appends to the Job of a kernel whose rows are shared by several blocks.
struct Team {
    int blocks;        // that share a row
    unsigned inverse;  // 2^32 / blocks, rounded up: a division takes 0.2 us, and comes before the first load
    int64 slice;       // of a row, for one block: in packs, or in steps
    void* scratch;

    // How many teams so many blocks are, of a grid that is at work at once.
    __device__ __forceinline__ unsigned count(unsigned of_blocks) const {
        return blocks == 1 ? of_blocks : __umulhi(of_blocks, inverse);
    }
    // The row of a slice. Of many slices the quotient may be one too many.
    __device__ __forceinline__ unsigned row_of(unsigned slice) const {
        const unsigned row = count(slice);
        return row - (row * blocks > slice ? 1 : 0);
    }
};

// What a kernel for shared rows is launched with.
template <class RowJob>
struct TeamJob : RowJob, Team {};

// The beginning of scratch memory; the slots follow. All zero at first.
struct alignas(128) ScratchHead {
    unsigned sequence;  // number of the last exchange
    unsigned left;      // blocks that will not look at scratch memory again in this launch
    unsigned most;      // slots that have been in use, in units of 16 bytes
    unsigned handed;    // rows that clusters, or slices that blocks have taken in this launch, beside the first of each
};

inline constexpr unsigned kLastSequence = 0xf0000000u;

// Asks for the number of the last exchange. By an address that a compiler takes for the thread's own: ptxas would move
// what is the same for all threads to a uniform register, and wait for it before the first load of the row.
__device__ __forceinline__ unsigned last_sequence(const ScratchHead* head) {
    return ptx::load_shared_word(&head->sequence + ptx::zero_of_thread());
}

__device__ __forceinline__ uint4* slots_of(ScratchHead* head) { return reinterpret_cast<uint4*>(head + 1); }

// By one thread: so many slots are in use.
__device__ __forceinline__ void use_slots(ScratchHead* head, unsigned used) { ptx::raise(&head->most, used); }

// By the last thread of a launch that looks at scratch memory: `last` is the number of its last exchange, and so many
// slots were in use. Nothing is read: the GPU waits for this thread.
__device__ __forceinline__ void put_forward(ScratchHead* head, unsigned last, unsigned used) {
    if (last >= kLastSequence) {  // before old numbers could be taken for new ones
        const unsigned most = ptx::load_shared_words(reinterpret_cast<const uint4*>(head)).z;
        for (unsigned i = 0; i < most || i < used; ++i) ptx::store_shared_words(slots_of(head) + i, {0, 0, 0, 0});
        last = 0;
    }
    ptx::store_shared_word(&head->handed, 0);
    ptx::store_shared_word(&head->left, 0);
    ptx::store_shared_word(&head->sequence, last);
}

// Where the blocks of a team are in the grid: side by side, as those of a cluster, or as far apart as may be.
enum class Teams { neighbours, apart };

// The thread block's place among those that share a row, and the rows of its team.
struct TeamPlace {
    unsigned rank;   // within the team
    unsigned team;   // of the launch
    unsigned teams;  // in the launch

    // Of a cluster of kBlocks, or of as many as the host said (0): a division by a constant is over in no time.
    template <int kBlocks>
    static __device__ __forceinline__ TeamPlace of(const Team& team, Teams lie = Teams::neighbours) {
        if constexpr (kBlocks > 0) {
            return TeamPlace(kBlocks, lie, [](unsigned blocks) { return blocks / kBlocks; });
        } else {
            return TeamPlace(team.blocks, lie, [&](unsigned blocks) { return team.count(blocks); });
        }
    }

   private:
    template <class Count>
    __device__ __forceinline__ TeamPlace(unsigned blocks, Teams lie, const Count& count) {
        this->team = count(blockIdx.x);
        rank = blockIdx.x - this->team * blocks;
        teams = count(gridDim.x);
        if (lie == Teams::apart) {
            rank = blockIdx.x / teams;
            this->team = blockIdx.x - rank * teams;
        }
    }
};

// Of a launch with so many exchanges a row, by the team that has the most.
__device__ __forceinline__ unsigned exchanges_of(int64 rows, unsigned teams, unsigned of_row) {
    return static_cast<unsigned>((rows + teams - 1) / teams) * of_row;
}

// A State as it crosses scratch memory: its words in pairs, each beside the number of its exchange, one access for two.
template <class State>
struct Numbered {
    static constexpr int kPairs = (sizeof(State) + 7) / 8;  // of 16 bytes

    static __device__ __forceinline__ void put(uint4* to, const State& state, unsigned number) {
        Words words{};
        *reinterpret_cast<State*>(words.at) = state;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
            ptx::store_shared_words(to + i, {words.at[2 * i], number, words.at[2 * i + 1], number});
        }
    }

    // Asks once. Whether it is there; if not, `state` is of no use.
    static __device__ __forceinline__ bool take(const uint4* from, unsigned number, State& state) {
        Words words;
        bool here = true;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
            const uint4 got = ptx::load_shared_words(from + i);
            here &= got.y == number && got.w == number;
            words.at[2 * i] = got.x;
            words.at[2 * i + 1] = got.z;
        }
        state = *reinterpret_cast<const State*>(words.at);
        return here;
    }

   private:
    struct Words {
        unsigned at[2 * kPairs];
    };
};

// A team's part of scratch memory: what each block publishes at a time, kStates states of type State, and the numbers
// that tell one time from the next.
//
// The slots alternate between two places. A block that writes to one of them again has seen all states of the exchange
// between, and every block had read the first place before it published its own.
template <class State, int kStates>
class TeamMemory {
   public:
    static constexpr int kPairs = Numbered<State>::kPairs;
    struct Scratch {};                         // of shared memory
    static constexpr bool kAllAtHand = false;  // as ClusterMemory's

    __device__ __forceinline__ TeamMemory(const Team& team, const TeamPlace& place, Scratch&)
        : TeamMemory(team, place) {}
    __device__ __forceinline__ TeamMemory(const Team& team, const TeamPlace& place)
        : head_(static_cast<ScratchHead*>(team.scratch)),
          slots_(slots_of(head_) + place.team * (2 * kPerBlock * team.blocks)),
          blocks(team.blocks),
          rank(static_cast<int>(place.rank)) {}

    // To be called before the exchanges of each row, early: asks for what they are counted from. It is the same each
    // time, but asked for before the first row it would be waited for there.
    __device__ __forceinline__ void begin_row() { first_ = last_sequence(head_); }

    // To be called before each exchange.
    __device__ __forceinline__ void next() { ++exchanges_; }

    __device__ __forceinline__ void publish(const State& mine, int which = 0) const {
        Numbered<State>::put(slot(rank, which), mine, first_ + exchanges_);
    }

    // The same of what all `senders` that call have: number 0 of them sends.
    __device__ __forceinline__ void publish(int sender, int, const State& mine, int which) const {
        if (sender == 0) publish(mine, which);
    }

    // Several, from number `which` on.
    template <int N>
    __device__ __forceinline__ void publish(int sender, int, const State (&mine)[N], int which) const {
        if (sender != 0) return;
#pragma unroll
        for (int i = 0; i < N; ++i) publish(mine[i], which + i);
    }

    // kCount states of block first, first + step, ..., each from number `which` on; `identity` past the last block.
    // All are asked for at a time: one round trip where they are there already.
    template <int kBlocks, int kCount>
    __device__ __forceinline__ void collect(int first, int step, int which, const State& identity,
                                            State (&states)[kBlocks][kCount]) const {
#pragma unroll
        for (auto& of_block : states) {
#pragma unroll
            for (State& state : of_block) state = identity;
        }
        bool missing;
        do {
            missing = false;
#pragma unroll
            for (int b = 0; b < kBlocks; ++b) {
                if (first + b * step >= blocks) continue;
                const uint4* const from = slot(first + b * step, which);
#pragma unroll
                for (int i = 0; i < kCount; ++i) {
                    missing |= !Numbered<State>::take(from + i * kPairs, first_ + exchanges_, states[b][i]);
                }
            }
            if (missing) ptx::wait_a_little();
        } while (missing);
    }

    // After this block's last exchange: what `left` wants. The answer of the counter is not waited for.
    __device__ __forceinline__ unsigned leave() const {
        if (threadIdx.x != 0) return 0;
        if (blockIdx.x == 0) use_slots(head_, gridDim.x * 2 * kPerBlock);
        return ptx::count_up(&head_->left, gridDim.x - 1);
    }

    // At the very end: the last block to leave puts the counter forward, by the exchanges of the team that had the
    // most. All others have taken what they wanted.
    __device__ __forceinline__ void left(unsigned before, int64 rows, unsigned teams, unsigned of_row = 1) const {
        if (threadIdx.x == 0 && before == gridDim.x - 1) {
            put_forward(head_, first_ + exchanges_of(rows, teams, of_row), gridDim.x * 2 * kPerBlock);
        }
    }

   private:
    static constexpr int kPerBlock = kStates * kPairs;

    __device__ __forceinline__ uint4* slot(int block, int which) const {
        const int place = static_cast<int>(exchanges_ % 2);
        return slots_ + (place * blocks + block) * kPerBlock + which * kPairs;
    }

    ScratchHead* head_;
    uint4* slots_;

   public:
    const int blocks;
    const int rank;

   private:
    unsigned first_ = 0;
    unsigned exchanges_ = 0;
};

// Exchanges of a State among all threads of the blocks of each team, kThreads of each block; a thread looks after
// kSlots of the other blocks. Rows are shared out evenly: with so many blocks to a team, teams are equally fast.
template <class State, int kThreads, int kSlots>
class Exchange {
   public:
    static constexpr int kWarps = kThreads / kWarpLanes;

    struct Scratch {
        State of_warp[kWarps];  // what the warps' own threads have brought
        State of_team[kWarps];  // what the warps have made of the blocks that they look after
    };

    __device__ __forceinline__ Exchange(const Team& team, const TeamPlace& place, int64 rows, Scratch& scratch)
        : memory_(team, place), scratch_(scratch), teams_(place.teams), rows_(rows) {}

    // To be called when a row is begun.
    __device__ __forceinline__ void begin_row() { memory_.begin_row(); }

    // Of this team after `row`, whose exchange is over.
    __device__ __forceinline__ int64 row_after(int64 row) const { return row + teams_; }

    // Every thread brings its state, and gets what `merge` makes of those of the whole team. merge(states) is called by
    // whole warps, with the states of each lane, and returns their total in every lane; missing states are `identity`.
    template <class Merge>
    __device__ __forceinline__ State operator()(const State& mine, const State& identity, Merge&& merge) {
        memory_.next();
        const int warp = static_cast<int>(threadIdx.x) / kWarpLanes, lane = static_cast<int>(threadIdx.x) % kWarpLanes;
        const State of_thread[1] = {mine};
        const State of_warp = merge(of_thread);
        if (lane == 0) scratch_.of_warp[warp] = of_warp;
        __syncthreads();
        const int all_warps = (memory_.blocks + kWarpLanes - 1) / kWarpLanes;
        const int warps = all_warps < kWarps ? all_warps : kWarps;
        if (warp < warps) {
            if (warp == 0) {
                const State of_warps[1] = {lane < kWarps ? scratch_.of_warp[lane] : identity};
                const State of_block = merge(of_warps);
                if (lane == 0 && memory_.blocks > 1) memory_.publish(of_block);
                if (lane == 0 && memory_.blocks == 1) scratch_.of_team[0] = of_block;
            }
            if (memory_.blocks > 1) {
                State collected[kSlots][1];
                memory_.collect(static_cast<int>(threadIdx.x), kThreads, 0, identity, collected);
                State states[kSlots];
#pragma unroll
                for (int s = 0; s < kSlots; ++s) states[s] = collected[s][0];
                const State of_team = merge(states);
                if (lane == 0) scratch_.of_team[warp] = of_team;
            }
        }
        __syncthreads();
        if (kWarps == 1 || warps == 1) return scratch_.of_team[0];
        const State of_warps[1] = {lane < warps ? scratch_.of_team[lane] : identity};
        return merge(of_warps);
    }

    // As TeamMemory's.
    __device__ __forceinline__ unsigned leave() const { return memory_.leave(); }
    __device__ __forceinline__ void left(unsigned before) const { memory_.left(before, rows_, teams_); }

   private:
    TeamMemory<State, 1> memory_;
    Scratch& scratch_;
    const unsigned teams_;
    const int64 rows_;
};

// Merges the states that the lanes of a warp have: an Exchange's `merge`.
template <class State, class Combine>
struct MergeStates {
    template <int kSlots>
    __device__ __forceinline__ State operator()(const State (&states)[kSlots]) const {
        State total = states[0];
#pragma unroll
        for (int s = 1; s < kSlots; ++s) total = Combine()(total, states[s]);
        return all_reduce_lanes<kWarpLanes>(total, Combine());
    }
};

}  // namespace onepass::cuda
