/* NCCL's logger; without one (NULL) nothing is said. Every line begins with the plugin's name. */
#ifndef PLUGIN_LOG_H
#define PLUGIN_LOG_H

#include "abi.h"

__attribute__((format(printf, 2, 3))) void log_info(nccl_logger logger, const char *format, ...);
__attribute__((format(printf, 2, 3))) void log_warn(nccl_logger logger, const char *format, ...);

#endif
