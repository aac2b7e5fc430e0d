// The scenarios of the host program. Each ends the process with 1 when something is wrong.
#ifndef PREFIXCACHE_HOSTS_HOST_HPP
#define PREFIXCACHE_HOSTS_HOST_HPP

#include <string>

// lives.cpp
void walk(int rounds);
void slip();  // lies about a length, as a check that the checkers look
void lifecycle(int rounds);
void threadLives(int threads);
void errors(int threads, int calls);
void copies(std::string const& first, std::string const& second);
void forks();

// crowd.cpp
void crowd(int threads, int milliseconds);
void die(std::string const& how);

// signals.cpp
void alarms(std::string const& how);
void interrupt(std::string const& how);

/// Resident memory in KiB.
long residentKiB();

#endif  // PREFIXCACHE_HOSTS_HOST_HPP
