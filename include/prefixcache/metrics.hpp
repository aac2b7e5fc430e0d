/*
 * The metrics of caches as a Prometheus page, for a C++ runtime's /metrics.
 * docs/metrics.md explains each metric.
 *
 * Threads: any, beside the calls of the caches.
 */
#ifndef PREFIXCACHE_METRICS_HPP
#define PREFIXCACHE_METRICS_HPP

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "library.hpp"

namespace prefixcache {

/// A cache, and labels of the host for its samples.
struct MetricsSource {
    pc_handle cache;  ///< of an omni cache, a manager, or handleOf(coordinator)
    std::vector<std::pair<std::string, std::string>> labels;
};

/// One page in the text format 0.0.4, with the metrics of the sources and of the library.
/// @throws std::runtime_error for a cache that is gone or a label that cannot be
inline std::string metricsText(std::vector<MetricsSource> const& sources) {
    pc_api const& api = Library::get();
    std::vector<std::vector<pc_label>> labels(sources.size());
    std::vector<pc_metrics_source> raw(sources.size());
    for (size_t i = 0; i < sources.size(); ++i) {
        for (auto const& label : sources[i].labels) {
            if ((label.first + label.second).find('\0') != std::string::npos) {  // where a C string would end
                throw std::runtime_error("prefixcache: sources[" + std::to_string(i) + "]: the label " +
                                         label.first.c_str() + " has a zero byte, expected text");
            }
            labels[i].push_back({label.first.c_str(), label.second.c_str()});
        }
        raw[i] = {sources[i].cache, labels[i].data(), labels[i].size()};
    }
    std::string page(1 << 14, '\0');
    for (uint64_t size = 0;;) {
        detail::check(api, api.metrics_text(raw.data(), raw.size(), &page[0], page.size(), &size));
        if (size < page.size()) {
            page.resize(size);
            return page;
        }
        page.resize(size + 256);  // a counter may have grown by a digit
    }
}

}  // namespace prefixcache

#endif  // PREFIXCACHE_METRICS_HPP
