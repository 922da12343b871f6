/* A library to preload: CPUID, as the program sees it, has no AVX-512, or no AVX where LESSER is sse.
 *
 * Linux makes a fault of the instruction where the processor can (arch_prctl(2), ARCH_SET_CPUID); the
 * handler answers in its place. The flags are those of Intel's manual, volume 2A, CPUID. */
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <cpuid.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define BIT(n) (1U << (n))

static int no_avx;

struct answer {
    unsigned a, b, c, d;
};

static long faulting(int on) { return syscall(SYS_arch_prctl, ARCH_SET_CPUID, !on); }

static void hide(unsigned leaf, unsigned part, struct answer *is) {
    if (leaf == 7 && part == 0) { /* AVX-512 of every kind, AMX */
        is->b &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31));
        is->c &= ~(BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14));
        is->d &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25));
        if (no_avx) is->b &= ~(BIT(3) | BIT(5) | BIT(8)); /* BMI1, AVX2, BMI2 */
    } else if (leaf == 7 && part == 1) { /* AVX-VNNI, AVX512-BF16, AVX-IFMA, AVX10 */
        is->a &= ~(BIT(4) | BIT(5) | BIT(23));
        is->d &= ~(BIT(4) | BIT(5) | BIT(19));
    } else if (leaf == 1 && no_avx) { /* FMA, XSAVE, OSXSAVE, AVX, F16C */
        is->c &= ~(BIT(12) | BIT(26) | BIT(27) | BIT(28) | BIT(29));
    } else if (leaf == 13 && no_avx) {
        memset(is, 0, sizeof *is);
    }
}

static void answer(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)registers[REG_RIP];
    (void)info;
    if (at[0] != 0x0f || at[1] != 0xa2) {
        signal(number, SIG_DFL); /* it comes again */
        return;
    }
    const unsigned leaf = (unsigned)registers[REG_RAX], part = (unsigned)registers[REG_RCX];
    struct answer is;
    faulting(0);
    __cpuid_count(leaf, part, is.a, is.b, is.c, is.d);
    faulting(1);
    hide(leaf, part, &is);
    registers[REG_RAX] = is.a;
    registers[REG_RBX] = is.b;
    registers[REG_RCX] = is.c;
    registers[REG_RDX] = is.d;
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void) {
    const char *wanted = getenv("LESSER");
    no_avx = wanted && !strcmp(wanted, "sse");
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = answer;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    if (sigaction(SIGSEGV, &action, NULL) || faulting(1)) {
        static const char text[] = "This processor or system cannot hide instructions from a program.\n";
        if (write(2, text, sizeof text - 1) < 0) abort();
        _exit(3);
    }
}
