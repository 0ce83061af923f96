/* Ranks, which are threads, wait for each other. */
#ifndef NCCL_TUNER_SIM_MEETING_H
#define NCCL_TUNER_SIM_MEETING_H

/* A communicator of `ranks`, of which this one is on the device. The calls are made for all of them before they meet. */
void sim_join(int device, int rank, int ranks);

/* The communicator that is made of some ranks of the one that there is: its members' devices by their rank in it. */
void sim_part(const int *devices, int n);

int sim_meet_everyone(void); /* 0 once every rank has come here, or an error */

/* While one rank acts for all, the others would do as it does: it waits for nobody, and they say the same. */
void sim_meet_alone(int one_acts);

/* Lets ranks that wait for others go, with an error. */
void sim_abandon_meetings(void);
int sim_meetings_abandoned(void);
void sim_release_searchers(void);
void sim_release_systems(void);

/* What was found for one communicator is not that of the next. */
void sim_forget_searches(void);
void sim_forget_systems(void);

/* What every rank comes to once is intercepted once more. */
void sim_intercept_again(void);

/* A rank goes on to tell the others what its search found. */
void sim_search_is_over(void);

#endif
