/* AMX for oneDNN (and so for torch) on a virtual machine that has it but does not describe it.
 *
 * Some hypervisors pass AMX through, yet answer CPUID leaves 0x1D and 0x1E (the shape of the tiles) with zeros. oneDNN
 * reads those, loads an empty tile configuration, and the first bfloat16 product dies of SIGILL. The instructions
 * themselves work. This library makes CPUID trap in this process and answers the two leaves as the processor does.
 *
 *   gcc -O2 -shared -fPIC tools/amx_cpuid.c -o /tmp/amx_cpuid.so
 *   LD_PRELOAD=/tmp/amx_cpuid.so ONEDNN_MAX_CPU_ISA=AVX512_CORE_AMX unembed train ...
 *
 * Linux on x86-64 with `cpuid_fault` in /proc/cpuinfo. Without the library unembed notices such a machine and stays with
 * float32 (unembed/precision.py).
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_CPUID_SET = 0x1012, LAST_LEAF = 0x1e, TILES = 0x1d, PRODUCTS = 0x1e };

static struct sigaction before;

static void pass_on(int number, siginfo_t *info, void *context) {
    if (before.sa_flags & SA_SIGINFO && before.sa_sigaction) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler && before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(number);
    } else {
        signal(SIGSEGV, SIG_DFL); /* comes again, and ends the process as it should */
    }
}

static void on_fault(int number, siginfo_t *info, void *context) {
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *code = (const uint8_t *)regs[REG_RIP];
    if (info->si_code != SI_KERNEL || code[0] != 0x0f || code[1] != 0xa2) { /* not a trapped CPUID */
        pass_on(number, info, context);
        return;
    }
    uint32_t leaf = regs[REG_RAX], sub = regs[REG_RCX], a, b, c, d;
    syscall(SYS_arch_prctl, ARCH_CPUID_SET, 1);
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "0"(leaf), "2"(sub));
    syscall(SYS_arch_prctl, ARCH_CPUID_SET, 0);
    if (leaf == 0 && a < LAST_LEAF) a = LAST_LEAF;
    if (leaf == TILES && sub == 0) a = 1, b = c = d = 0;                                  /* palettes */
    if (leaf == TILES && sub == 1) a = 8192 | 1024 << 16, b = 64 | 8 << 16, c = 16, d = 0; /* bytes, row, tiles, rows */
    if (leaf == PRODUCTS && sub == 0) a = 0, b = 16 | 64 << 8, c = d = 0;                  /* rows and row of a product */
    regs[REG_RAX] = a, regs[REG_RBX] = b, regs[REG_RCX] = c, regs[REG_RDX] = d;
    regs[REG_RIP] += 2;
}

__attribute__((constructor)) static void start(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    unsetenv("LD_PRELOAD"); /* compilers and other children have fault handlers of their own */
    sigaction(SIGSEGV, &action, &before);
    syscall(SYS_arch_prctl, ARCH_CPUID_SET, 0);
}
