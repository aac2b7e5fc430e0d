// A host of the library: one scenario, in a process of its own.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "host.hpp"

int main(int argc, char** argv) {
    std::string const mode = argc > 1 ? argv[1] : "";
    auto const text = [&](int i) { return std::string(argc > i ? argv[i] : ""); };
    auto const number = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
    if (mode == "walk") {
        walk(number(2, 20));
    } else if (mode == "slip") {
        slip();
    } else if (mode == "lifecycle") {
        lifecycle(number(2, 1000));
    } else if (mode == "threadlives") {
        threadLives(number(2, 1000));
    } else if (mode == "errors") {
        errors(number(2, 4), number(3, 1000));
    } else if (mode == "copies") {
        copies(text(2), text(3));
    } else if (mode == "forks") {
        forks();
    } else if (mode == "crowd") {
        crowd(number(2, 64), number(3, 1000));
    } else if (mode == "die") {
        die(text(2));
    } else if (mode == "alarms") {
        alarms(text(2));
    } else if (mode == "interrupt") {
        interrupt(text(2));
    } else {
        std::fprintf(stderr, "host: no such scenario: %s\n", mode.c_str());
        return 2;
    }
    std::printf("done\n");
    return 0;
}
