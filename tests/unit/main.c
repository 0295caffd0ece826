/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - run the unit tests. CK_RUN_CASE=json runs one case, CK_FORK=no runs them in this process. */
#include "config/log.h"
#include "tests/unit/suites.h"

#include <stdlib.h>

enum { HANG_S = 1800 }; /* far beyond what any test takes, also on a slow machine; Check's own are 4 */

static void add_case(Suite *suite, TCase *tc)
{
    tcase_set_timeout(tc, HANG_S);
    suite_add_tcase(suite, tc);
}

int main(void)
{
    log_init(LOG_ERROR, LOG_TEXT); /* what is refused on purpose is no news */
    Suite *suite = suite_create("attnd");
#define XX(name) add_case(suite, name##_case());
    SUITES(XX)
#undef XX
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
