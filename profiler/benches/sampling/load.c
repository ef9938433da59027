/* Keeps one CPU busy below a chain of calls: load CPU FRAMES UNITS
 *
 * The innermost function has FRAMES frames, itself and main included: 2 to 101. With UNITS 0 it
 * runs until it is killed; else it does that much work and prints how many nanoseconds that took, of
 * the clock and of the CPU. It ends with its parent in every case. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#define UNIT_STEPS 500000UL

#define FUNCTION(name) __attribute__((noinline)) unsigned long name(unsigned long x)

/* Each function by itself, and not one that calls itself: programs have many return addresses. */
#define TEN(X, tens, after)                                                                 \
	X(tens##0, tens##1) X(tens##1, tens##2) X(tens##2, tens##3) X(tens##3, tens##4)     \
	X(tens##4, tens##5) X(tens##5, tens##6) X(tens##6, tens##7) X(tens##7, tens##8)     \
	X(tens##8, tens##9) X(tens##9, after)
#define LINKS(X)                                                                            \
	TEN(X, 10, 110) TEN(X, 11, 120) TEN(X, 12, 130) TEN(X, 13, 140) TEN(X, 14, 150)     \
	TEN(X, 15, 160) TEN(X, 16, 170) TEN(X, 17, 180) TEN(X, 18, 190)                     \
	X(190, 191) X(191, 192) X(192, 193) X(193, 194) X(194, 195) X(195, 196)             \
	X(196, 197) X(197, 198) X(198, 199)

#define DECLARE(number, next) FUNCTION(f##number);
LINKS(DECLARE)

FUNCTION(f199)
{
	for (unsigned long i = 0; i < UNIT_STEPS; i++) {
		x = x * 6364136223846793005UL + 1442695040888963407UL;
		__asm__ volatile("" : "+r"(x));
	}
	return x;
}

/* A frame has some variables, too. */
#define DEFINE(number, next)                                                                \
	FUNCTION(f##number)                                                                 \
	{                                                                                   \
		volatile unsigned long locals[4] = {x};                                     \
		return f##next(x) + locals[0];                                              \
	}
LINKS(DEFINE)

#define NAME(number, next) f##number,
static unsigned long (*const entries[])(unsigned long) = {LINKS(NAME) f199};
#define ENTRIES (sizeof(entries) / sizeof(*entries))

static unsigned long long now_ns(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(atoi(argv[1]), &set);
	if (sched_setaffinity(0, sizeof(set), &set) != 0) {
		perror("sched_setaffinity");
		return 1;
	}
	unsigned long frames = strtoul(argv[2], NULL, 10);
	unsigned long units = strtoul(argv[3], NULL, 10);
	if (frames < 2 || frames > ENTRIES + 1)
		return 2;
	unsigned long (*const entry)(unsigned long) = entries[ENTRIES + 1 - frames];
	unsigned long x = 1;
	unsigned long long start = now_ns(CLOCK_MONOTONIC);
	unsigned long long used = now_ns(CLOCK_PROCESS_CPUTIME_ID);
	for (unsigned long done = 0; units == 0 || done < units; done++)
		x = entry(x);
	used = now_ns(CLOCK_PROCESS_CPUTIME_ID) - used;
	unsigned long long took = now_ns(CLOCK_MONOTONIC) - start;
	__asm__ volatile("" : : "r"(x));
	printf("%llu %llu\n", took, used);
	return 0;
}
