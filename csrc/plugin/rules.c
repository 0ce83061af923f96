#include "rules.h"

bool rules_build(const struct table *table, const struct shape *shape, struct rules *rules) {
    *rules = (struct rules){.shape = *shape};
    if (!lookup_build(table, shape, &rules->lookup)) {
        return false;
    }
    if (!costs_build(table, shape, &rules->costs)) {
        lookup_free(&rules->lookup);
        return false;
    }
    return true;
}

void rules_free(struct rules *rules) {
    lookup_free(&rules->lookup);
    costs_free(&rules->costs);
}
