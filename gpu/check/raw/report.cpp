#include "report.hpp"

#include <cstdio>

namespace check {

namespace {

bool failed = false;

std::string quoted(std::string const& text) {
    std::string out = "\"";
    for (unsigned char const c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += static_cast<char>(c);
        } else if (c < 0x20) {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", c);
            out += escape;
        } else {
            out += static_cast<char>(c);
        }
    }
    return out + "\"";
}

void line(char const* kind, std::string const& name, std::string const& rest) {
    std::printf("{\"kind\": \"%s\", \"name\": %s, %s}\n", kind, quoted(name).c_str(), rest.c_str());
    std::fflush(stdout);
}

}  // namespace

void run(std::string const& name, std::function<std::string()> const& body) {
    auto const start = Clock::now();
    std::string detail;
    bool ok = true;
    try {
        detail = body();
    } catch (std::exception const& e) {
        ok = false;
        failed = true;
        detail = e.what();
    }
    char took[32];
    std::snprintf(took, sizeof took, "%.2f", seconds(start));
    line("check", name,
         std::string("\"ok\": ") + (ok ? "true" : "false") + ", \"detail\": " + quoted(detail) +
             ", \"seconds\": " + took);
}

void notRun(std::string const& name, std::string const& why) { line("not run", name, "\"detail\": " + quoted(why)); }

void figure(std::string const& name, double value, std::string const& unit, double reference,
            std::string const& referenceName) {
    char text[96];
    std::snprintf(text, sizeof text, "\"value\": %.6g, \"reference\": %.6g, ", value, reference);
    line("figure", name, text + ("\"unit\": " + quoted(unit)) + ", \"reference_name\": " + quoted(referenceName));
}

bool anyFailed() { return failed; }

}  // namespace check
