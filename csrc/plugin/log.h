/* NCCL's logger; without one (NULL) nothing is said. Every line begins with the plugin's name. */
#ifndef PLUGIN_LOG_H
#define PLUGIN_LOG_H

#include <stdbool.h>

#include "abi.h"

#define LOG_NAME "TUNER/nccl-tuner: "

/* Looks at NCCL_DEBUG, as a communicator starts: a thread of the plugin's own must not, the program may set variables. */
void log_look(void);

/* Whether NCCL prints lines of a level, which a logger cannot be asked for. A line that would be dropped is not formatted. */
bool log_prints(int level);

__attribute__((format(printf, 2, 3))) void log_info(nccl_logger logger, const char *format, ...);
__attribute__((format(printf, 2, 3))) void log_warn(nccl_logger logger, const char *format, ...);

/* A line at INFO for whoever has asked before whether NCCL prints it. */
__attribute__((format(printf, 2, 3))) void log_asked_info(nccl_logger logger, const char *format, ...);

/* A line that stands as it is, LOG_NAME at its beginning: nothing is formatted. */
void log_warn_text(nccl_logger logger, const char *text);

#endif
