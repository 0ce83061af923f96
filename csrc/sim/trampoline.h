/* Functions of libnccl that are redirected to something that calls them. */
#ifndef NCCL_TUNER_SIM_TRAMPOLINE_H
#define NCCL_TUNER_SIM_TRAMPOLINE_H

/* Redirects the function, and returns what does the same as it did before; NULL where it cannot be, and nothing changed. The
 * function must not be running. */
void *sim_redirect_keeping(void *function, void *replacement);

#endif
