#include "explain.h"

#include "decider.h"
#include "legacy.h"
#include "tables.h"
#include "tuner.h"
#include "tuner_v1.h"

__attribute__((visibility("default"))) void nccl_tuner_explain(int version, const void *context,
                                                               const struct call *call, struct cost_cells cells,
                                                               struct explanation *explanation) {
    const struct decider *decider = tuner_decider(version == 1 ? tuner_v1_deciding() : context);
    float own[CELLS];
    *explanation = (struct explanation){0};
    if (!decider) {
        return;
    }
    struct call asked = *call;
    if (version < 3) {
        legacy_fill(own, call, &decider->rules->shape, decider->unchecked);
        cells = (struct cost_cells){own, ALGORITHMS, PROTOCOLS};
    }
    if (version < 4) {
        asked.registered = 0;
    }
    decider_explain(decider, &asked, cells, explanation);
}

__attribute__((visibility("default"))) void nccl_tuner_forget_tables(void) {
    tuner_v1_forget();
    tables_forget();
}
