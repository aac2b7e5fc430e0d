// Signals of the host while it calls.
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "host.hpp"
#include "work.hpp"

namespace {

std::atomic<int> seen{0};
std::atomic<int> lastErrno{0};

/// As deep as real handlers go: profilers unwind, loggers format.
__attribute__((noinline)) void deep(int n) {
    char volatile room[1024];
    room[0] = static_cast<char>(n);
    if (n > 0) {
        deep(n - 1);
    }
    room[1023] = room[0];
}

void handler(int) {
    int const saved = errno;
    deep(12);
    ++seen;
    errno = saved;
}

void install(int number, int flags) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, nullptr);
}

void everyMillisecond() {
    itimerval t{};
    t.it_interval.tv_usec = t.it_value.tv_usec = 1000;
    setitimer(ITIMER_REAL, &t, nullptr);
}

/// Threads in calls, each hit by signals of its own, for so long and until so many were seen:
/// signals that come while a thread has no processor are one.
void hail(int milliseconds, int least) {
    Context context(api());
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
            Omni omni(api(), t == 0);
            for (int i = 0; !stop; ++i) {
                context.lease(i % 5);
                omni.round(static_cast<uint8_t>(i));
            }
        });
    }
    auto const end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
    auto const hangs = end + std::chrono::minutes(1);
    for (int i = 0; std::chrono::steady_clock::now() < (seen < least ? hangs : end); ++i) {
        pthread_kill(threads[static_cast<size_t>(i) % 3].native_handle(), SIGALRM);
        std::this_thread::sleep_for(std::chrono::microseconds(300));
        context.round(i % 5);
    }
    stop = true;
    for (auto& t : threads) {
        t.join();
    }
}

}  // namespace

void alarms(std::string const& how) {
    if (how == "before") {  // the library finds the handler when it is loaded
        install(SIGALRM, SA_RESTART);
        api();
    } else if (how == "onstack") {
        api();
        install(SIGALRM, SA_ONSTACK | SA_RESTART);
    } else {  // "after": on whatever stack the thread is, also one of Go
        api();
        install(SIGALRM, 0);
    }
    everyMillisecond();
    hail(1500, 300);
    itimerval none{};
    setitimer(ITIMER_REAL, &none, nullptr);
    std::printf("%d signals\n", seen.load());
    if (seen < 300) {
        broken("alarms", "the host's handler was not called");
    }
}

void interrupt(std::string const& how) {
    Context context(api());
    Omni omni(api(), false);
    int ends[2];
    if (pipe(ends) != 0) {
        broken("pipe");
    }
    close(ends[0]);
    if (how == "sigpipe_ignored") {
        signal(SIGPIPE, SIG_IGN);
        context.round(1);
        if (write(ends[1], "x", 1) != -1 || errno != EPIPE) {
            broken("SIGPIPE", "expected EPIPE");
        }
        omni.round(1);
        std::exit(3);
    }
    if (how == "sigurg") {  // the number that Go uses between its own threads
        install(SIGURG, SA_ONSTACK);
        for (int i = 0; i < 200; ++i) {
            raise(SIGURG);
            context.round(i % 5);
        }
        if (seen < 200) {
            broken("SIGURG", "the host's handler was not called");
        }
        std::exit(3);
    }
    if (how == "sigint_handled") {
        install(SIGINT, SA_ONSTACK);
        for (int i = 0; i < 50; ++i) {
            kill(getpid(), SIGINT);
            context.round(i % 5);
        }
        if (seen == 0) {
            broken("SIGINT", "the host's handler was not called");
        }
        std::exit(3);
    }
    for (int i = 0;; ++i) {  // by default these end the process, inside a call or not
        context.round(i % 5);
        if (i == 5) {
            if (how == "sigpipe") {
                (void)!write(ends[1], "x", 1);
            } else if (how == "sigint") {
                kill(getpid(), SIGINT);
            } else if (how == "sigterm") {
                kill(getpid(), SIGTERM);
            } else if (how == "sighup") {
                kill(getpid(), SIGHUP);
            } else if (how == "sigquit") {
                kill(getpid(), SIGQUIT);
            }
        }
        if (i > 2000) {
            broken(how.c_str(), "the process is still there");
        }
    }
}
