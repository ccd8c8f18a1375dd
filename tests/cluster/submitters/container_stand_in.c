/* A stand-in for the pyxis plug-in of Slurm: its options, of which only the mounts do something. The root stays the
 * node's own, so what is mounted is all that a container would show otherwise. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>

/* As spank(7) has them. */
typedef struct spank_handle *spank_t;
struct spank_option {
    char *name, *arginfo, *usage;
    int has_arg, val;
    int (*cb)(int val, const char *value, int remote);
};

const char plugin_name[] = "container_stand_in";
const char plugin_type[] = "spank";
const unsigned int plugin_version = SLURM_VERSION;
const unsigned int spank_plugin_version = 1;

static char *mounts;

static int keep(int val, const char *value, int remote) {
    if (val == 1 && remote) mounts = strdup(value);
    return 0;
}

struct spank_option spank_options[] = {
    {"container-image", "IMAGE", "simulated: the root stays the node's", 1, 0, keep},
    {"container-mounts", "SRC:DST[,...]", "folders that the tasks see elsewhere", 1, 1, keep},
    {"container-workdir", "PATH", "simulated: nothing is done", 1, 2, keep},
    {0},
};

int slurm_spank_task_init_privileged(spank_t spank, int argc, char **argv) {
    char *rest, *source;
    if (!mounts) return 0;
    if (unshare(CLONE_NEWNS) || mount("", "/", 0, MS_REC | MS_PRIVATE, 0)) return -1;
    for (char *each = strtok_r(strdup(mounts), ",", &rest); each; each = strtok_r(0, ",", &rest)) {
        char *target = strchr(source = each, ':');
        if (!target) continue;
        *target++ = 0;
        target[strcspn(target, ":")] = 0;
        if (mount(source, target, 0, MS_BIND | MS_REC, 0)) return -1;
    }
    return 0;
}
