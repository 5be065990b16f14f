// A team of threads that waits by spinning for a short time and then sleeps.
//
// Knows: threads and barriers. Does not know: what they compute. The gaps inside a step are microseconds and a wake-up
// costs 50 to 100 of them, so who waits spins first; who is idle for longer sleeps and leaves the core to others.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <vector>
#if defined(__x86_64__)
#define DL_PAUSE() __builtin_ia32_pause()
#else
#define DL_PAUSE() ((void)0)
#endif

// Turn i of waiting for somebody who is at work. After some 30 us another process has his core: give it ours. Beside two
// busy processes on two cores, SmolLM2 decodes 52 tokens/s so; with 20000 turns it is 39, with 100 it is 8.
static inline void spin(int i) {
    DL_PAUSE();
    if (i > 1000) std::this_thread::yield();
}

struct Barrier {
    int size;
    std::atomic<int> arrived{0}, phase{0};
    void wait() {
        if (size == 1) return;
        int mine = phase.load(std::memory_order_acquire);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
            arrived.store(0, std::memory_order_relaxed);
            phase.store(mine + 1, std::memory_order_release);
            return;
        }
        for (int i = 0; phase.load(std::memory_order_acquire) == mine; i++) spin(i);
    }
};

struct Team {
    using Job = void (*)(void* what, int rank, int size, Barrier& barrier);
    int size, owner = getpid();
    Barrier barrier{};
    std::atomic<uint32_t> turn{0};
    std::atomic<int> running{0};
    Job job = nullptr;
    void* what = nullptr;
    bool stop = false;
    std::vector<std::thread> threads;

    explicit Team(int n) : size(n) {
        barrier.size = n;
        for (int rank = 1; rank < n; rank++) threads.emplace_back([this, rank] { loop(rank); });
    }
    ~Team() {
        stop = true;
        turn.fetch_add(1);
        turn.notify_all();
        for (auto& t : threads)
            if (owner == getpid()) t.join();
            else t.detach();  // a fork has the objects, not the threads
    }
    void loop(int rank) {
        uint32_t seen = 0;
        while (true) {
            for (int i = 0; i < 4000 && turn.load(std::memory_order_acquire) == seen; i++) DL_PAUSE();
            turn.wait(seen, std::memory_order_acquire);
            seen = turn.load(std::memory_order_acquire);
            if (stop) return;
            job(what, rank, size, barrier);
            running.fetch_sub(1, std::memory_order_release);
        }
    }
    void run(Job f, void* w) {
        job = f, what = w;
        running.store(size - 1, std::memory_order_relaxed);
        turn.fetch_add(1, std::memory_order_release);
        if (size > 1) turn.notify_all();
        f(w, 0, size, barrier);
        for (int i = 0; running.load(std::memory_order_acquire); i++) spin(i);
    }
};

// The team of this process, made anew after a fork or for another size. Calls from several threads take turns.
inline void run_team(int size, Team::Job job, void* what) {
    static std::mutex one_at_a_time;
    static std::unique_ptr<Team> team;
    std::lock_guard<std::mutex> hold(one_at_a_time);
    if (!team || team->size != size || team->owner != getpid()) {
        if (team && team->owner != getpid()) (void)team.release();
        team = std::make_unique<Team>(size);
    }
    team->run(job, what);
}
