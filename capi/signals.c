/*
 * Handlers of the host and stacks of Go.
 *
 * A thread that is inside the library runs on a small stack of Go. A handler that was
 * installed without SA_ONSTACK runs there, too, when its signal comes, and writes past
 * the end. The Go runtime adds the flag to the handlers that it finds when it is loaded;
 * this does the same for those that came later, whenever an object is created.
 */
#include <signal.h>
#include <stdio.h>

#include "shim.h"

void pcshim_guard_signals(void) {
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) != 0 || action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN ||
            action.sa_flags & SA_ONSTACK) {
            continue;
        }
        action.sa_flags |= SA_ONSTACK;
        if (sigaction(number, &action, NULL) == 0) {
            char text[160];
            snprintf(text, sizeof text,
                     "signal %d: its handler was installed without SA_ONSTACK and would have run on a stack of Go; "
                     "the flag was added",
                     number);
            pcshim_log(PC_LOG_WARNING, text);
        }
    }
}
