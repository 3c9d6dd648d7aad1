// A plugin of QEMU that counts the instructions of one process and appends them to the file $GUARD_COUNTS, as
// "NAME COUNT", where NAME is the plugin's argument `name`. QEMU emulates the same processor on every machine, so that
// counts of one build differ by less than a percent between runs and machines.
// https://www.qemu.org/docs/master/devel/tcg-plugins.html; Debian has no header of this interface, so the part that is
// used is declared here.
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t plugin_id;
struct block;

extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct block *));
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct block *, void (*)(unsigned, void *), int, void *);
extern size_t qemu_plugin_tb_n_insns(const struct block *);
extern void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);

int qemu_plugin_version = 1;

enum { THREADS = 4096, LINE = 8 };

// A cache line for each thread. More threads than this share lines, and lose a few counts.
static uint64_t counts[THREADS][LINE];
static char name[32];
// A forked process begins with the counts of its parent, who reports them itself.

static void forget_parent(void) {
    memset(counts, 0, sizeof counts);
}

static void run(unsigned thread, void *instructions) {
    counts[thread % THREADS][0] += (uintptr_t)instructions;
}

static void translate(plugin_id id, struct block *block) {
    (void)id;
    void *instructions = (void *)(uintptr_t)qemu_plugin_tb_n_insns(block);
    qemu_plugin_register_vcpu_tb_exec_cb(block, run, 0, instructions);
}

static void end(plugin_id id, void *data) {
    (void)id;
    (void)data;
    uint64_t sum = 0;
    for (int thread = 0; thread < THREADS; thread++)
        sum += counts[thread][0];
    char line[64];
    int length = snprintf(line, sizeof line, "%s %llu\n", name, (unsigned long long)sum);
    int file = open(getenv("GUARD_COUNTS"), O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (file < 0 || write(file, line, length) != length)
        perror("write the number of instructions");
}

int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
    (void)info;
    if (argc != 1 || strncmp(argv[0], "name=", 5) != 0 || getenv("GUARD_COUNTS") == NULL)
        return 1;
    snprintf(name, sizeof name, "%s", argv[0] + 5);
    pthread_atfork(NULL, NULL, forget_parent);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
    qemu_plugin_register_atexit_cb(id, end, NULL);
    return 0;
}
