// The library inside hosts of many kinds. Each scenario is a process of its own, begun in
// an empty folder; it has to end in time, as expected, and to leave nothing behind.
//
// PREFIXCACHE_HOSTS_SCALE=n makes the long ones n times as long; 10 is what `make hosts` does.
#include <gtest/gtest.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Arguments = std::vector<std::string>;

std::string const kPrograms = HOST_PROGRAMS;

int scale() {
    char const* s = std::getenv("PREFIXCACHE_HOSTS_SCALE");
    return s == nullptr ? 1 : std::atoi(s);
}

std::set<std::string> listing(std::string const& folder) {
    std::set<std::string> names;
    if (DIR* dir = opendir(folder.c_str())) {
        while (dirent const* e = readdir(dir)) {
            names.insert(e->d_name);
        }
        closedir(dir);
    }
    names.erase(".");
    names.erase("..");
    return names;
}

std::string contents(std::string const& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

/// One run of a host, and the check that nothing of it is left.
class Process {
  public:
    explicit Process(Arguments const& arguments, std::vector<std::string> const& environment = {}) {
        char folder[] = "/tmp/prefixcache-host-XXXXXX";
        folder_ = mkdtemp(folder);
        output_ = folder_ + ".txt";
        std::vector<char*> argv;
        for (auto const& a : arguments) {
            argv.push_back(const_cast<char*>(a.c_str()));
        }
        argv.push_back(nullptr);
        pid_ = fork();
        if (pid_ == 0) {
            setpgid(0, 0);
            // What the shell ignores in the background would be ignored in the host, too.
            for (int const ignored : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE}) {
                ::signal(ignored, SIG_DFL);
            }
            rlimit const none{0, 0};
            setrlimit(RLIMIT_CORE, &none);
            int const out = open(output_.c_str(), O_WRONLY | O_CREAT, 0600);
            dup2(out, 1);
            dup2(out, 2);
            setenv("TMPDIR", folder_.c_str(), 1);
            setenv("HOME", folder_.c_str(), 1);
            for (auto const& e : environment) {
                putenv(const_cast<char*>(e.c_str()));
                if (e.rfind("TSAN_", 0) == 0) {
                    // Sanitizers want addresses of their own, which a kernel that scatters memory widely
                    // (vm.mmap_rnd_bits is 32) gives to something else. A container may refuse this.
                    personality(ADDR_NO_RANDOMIZE);
                }
            }
            if (chdir(folder_.c_str()) == 0) {
                execvp(argv[0], argv.data());
            }
            _exit(127);
        }
    }
    ~Process() {
        if (!ended_) {
            kill(-pid_, SIGKILL);
            waitpid(pid_, nullptr, 0);
        }
        unlink(output_.c_str());
        for (auto const& name : listing(folder_)) {
            unlink((folder_ + "/" + name).c_str());
        }
        rmdir(folder_.c_str());
    }
    Process(Process const&) = delete;

    void signal(int number) const { kill(pid_, number); }
    /// Waits until the host has written this.
    bool says(std::string const& text) const {
        for (int i = 0; i < 12000; ++i) {
            if (output().find(text) != std::string::npos) {
                return true;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return false;
    }
    std::string output() const { return contents(output_); }

    /// The wait status; -1 when it did not end in time.
    int end(int seconds = 120) {
        auto const deadline = Clock::now() + std::chrono::seconds(seconds);
        int status = -1;
        while (waitpid(pid_, &status, WNOHANG) == 0) {
            if (Clock::now() > deadline) {
                return -1;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
        ended_ = true;
        EXPECT_TRUE(kill(-pid_, 0) == -1 && errno == ESRCH) << "it left processes behind";
        EXPECT_TRUE(listing(folder_).empty()) << "it left " << *listing(folder_).begin();
        for (auto const& name : listing("/dev/shm")) {
            EXPECT_EQ(name.find("prefixcache"), std::string::npos) << "shared memory left: " << name;
        }
        return status;
    }

  private:
    std::string folder_, output_;
    pid_t pid_ = -1;
    bool ended_ = false;
};

std::string statusText(int status) {
    return status == -1          ? "it hangs"
           : WIFSIGNALED(status) ? "killed by signal " + std::to_string(WTERMSIG(status))
                                 : "exit " + std::to_string(WEXITSTATUS(status));
}

void expectEnd(std::string const& expected, Arguments const& arguments,
               std::vector<std::string> const& environment = {}) {
    Process run(arguments, environment);
    std::string const end = statusText(run.end(180 * scale()));
    EXPECT_EQ(end, expected) << run.output().substr(0, 6000);
}

std::string const kDlopen = kPrograms + "/host_dlopen", kLinked = kPrograms + "/host_linked",
                  kAddress = kPrograms + "/host_address", kThread = kPrograms + "/host_thread";
std::vector<std::string> const kSanitizers{"ASAN_OPTIONS=exitcode=9:detect_leaks=1", "UBSAN_OPTIONS=halt_on_error=1",
                                           "TSAN_OPTIONS=exitcode=9:halt_on_error=1"};

TEST(Hosts, LinkedAndOpened) {
    expectEnd("exit 0", {kDlopen, "walk", "50"});
    expectEnd("exit 0", {kLinked, "walk", "50"});
}

TEST(Hosts, UnderAddressAndUndefinedBehaviourSanitizer) {
    expectEnd("exit 0", {kAddress, "walk", "20"}, kSanitizers);
    expectEnd("exit 0", {kAddress, "crowd", "16", "300"}, kSanitizers);
}

TEST(Hosts, UnderThreadSanitizer) {
    expectEnd("exit 0", {kThread, "walk", "10"}, kSanitizers);
    expectEnd("exit 0", {kThread, "crowd", "16", "300"}, kSanitizers);
    // Memory that Go has just mapped, on one thread, has the texts of others right away.
    auto growing = kSanitizers;
    growing.emplace_back("GOGC=off");
    expectEnd("exit 0", {kThread, "errors", "64", "20000"}, growing);
}

/// What memcheck finds wrong with memory of the host. It cannot follow Go's stacks, so that
/// what it says about those is left out.
std::string underValgrind(Arguments const& host) {
    Arguments all{"valgrind", "-q", "--leak-check=full"};
    all.insert(all.end(), host.begin(), host.end());
    Process run(all, {"GOGC=off"});
    EXPECT_EQ(statusText(run.end()), "exit 0") << run.output();
    std::istringstream lines(run.output());
    std::string found;
    for (std::string line; std::getline(lines, line);) {
        if (line.find(" block of size ") != std::string::npos || line.find("definitely lost") != std::string::npos) {
            found += line + "\n";
        }
    }
    return found;
}

TEST(Hosts, UnderValgrind) { EXPECT_EQ(underValgrind({kDlopen, "walk", "2"}), ""); }

TEST(Hosts, ValgrindNoticesALengthThatIsALie) {
    EXPECT_NE(underValgrind({kDlopen, "slip"}).find("after a block of size 8"), std::string::npos);
}

TEST(Hosts, SixtyFourThreads) {
    expectEnd("exit 0", {kDlopen, "crowd", "64", std::to_string(1500 * scale())});
    expectEnd("exit 0", {kLinked, "crowd", "64", "500"}, {"GOGC=5"});  // with the collector always at work
}

TEST(Hosts, FlatMemoryOverManyLives) {
    expectEnd("exit 0", {kDlopen, "lifecycle", std::to_string(5000 * scale() * (scale() > 1 ? 2 : 1))});
}

TEST(Hosts, FlatMemoryOverManyThreads) {
    expectEnd("exit 0", {kDlopen, "threadlives", std::to_string(3000 * scale())});
}

TEST(Hosts, ForkBeforeAndAfterLoading) {
    expectEnd("exit 0", {kDlopen, "forks"});
    expectEnd("exit 0", {kLinked, "forks"});
}

TEST(Hosts, TwoCopiesInOneProcess) {
    std::string const library = std::getenv("PREFIXCACHE_LIBRARY");
    std::string const copy = kPrograms + "/copy-of-libprefixcache.so";
    std::ofstream(copy, std::ios::binary) << contents(library);
    expectEnd("exit 0", {kDlopen, "copies", library, copy});
}

class Alarms : public testing::TestWithParam<std::string> {};
TEST_P(Alarms, AThousandASecond) { expectEnd("exit 0", {kDlopen, "alarms", GetParam()}); }
INSTANTIATE_TEST_SUITE_P(Hosts, Alarms, testing::Values("before", "onstack", "after"));

TEST(Hosts, SignalsMeanWhatTheyMeantBefore) {
    expectEnd("exit 3", {kDlopen, "interrupt", "sigpipe_ignored"});
    expectEnd("exit 3", {kDlopen, "interrupt", "sigint_handled"});
    expectEnd("exit 3", {kDlopen, "interrupt", "sigurg"});
    std::pair<char const*, int> const ends[] = {
        {"sigpipe", SIGPIPE}, {"sigint", SIGINT}, {"sigterm", SIGTERM}, {"sighup", SIGHUP}, {"sigquit", SIGQUIT}};
    for (auto const& [name, number] : ends) {
        expectEnd("killed by signal " + std::to_string(number), {kDlopen, "interrupt", name});
    }
}

TEST(Hosts, DyingOfItself) {
    for (char const* how : {"exit", "exit_of_a_thread", "quick_exit", "_exit"}) {
        expectEnd("exit 3", {kDlopen, "die", how});
        expectEnd("exit 3", {kLinked, "die", how});
    }
    expectEnd("killed by signal " + std::to_string(SIGABRT), {kDlopen, "die", "abort"});
    expectEnd("killed by signal " + std::to_string(SIGABRT), {kDlopen, "die", "throw"});
    expectEnd("killed by signal " + std::to_string(SIGSEGV), {kDlopen, "die", "segfault"});
}

TEST(Hosts, KilledAtAnyMoment) {
    for (int i = 0; i < 12 * scale(); ++i) {
        Process run(Arguments{i % 2 == 0 ? kDlopen : kLinked, "die", i % 3 == 2 ? "end_of_main" : "wait"});
        if (i % 4 == 0) {  // else also while it is still loading
            ASSERT_TRUE(run.says("up")) << run.output();
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(7 * i % 60));
        int const number = i % 4 == 3 ? SIGTERM : SIGKILL;
        run.signal(number);
        EXPECT_EQ(statusText(run.end()), "killed by signal " + std::to_string(number)) << run.output();
    }
}

}  // namespace
