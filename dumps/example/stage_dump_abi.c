/* stage_dump.h for languages other than C: its functions exported, and a handle that they need not know the size of. */
#define STAGE_DUMP_FN
#include "stage_dump.h"

stage_dump *stage_dump_new(void) { return (stage_dump *)calloc(1, sizeof(stage_dump)); }

const char *stage_dump_error(const stage_dump *d) { return d->error; }

void stage_dump_free(stage_dump *d) { free(d); }
