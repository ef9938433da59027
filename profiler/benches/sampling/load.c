/* Keeps one CPU busy below a chain of 28 calls: load CPU UNITS
 *
 * With UNITS 0 it runs until it is killed; else it does that much work and prints how many
 * nanoseconds that took. It ends with its parent in every case. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#define UNIT_STEPS 500000UL

__attribute__((noinline)) unsigned long f28(unsigned long x)
{
	for (unsigned long i = 0; i < UNIT_STEPS; i++) {
		x = x * 6364136223846793005UL + 1442695040888963407UL;
		__asm__ volatile("" : "+r"(x));
	}
	return x;
}

#define LINK(name, next)                                            \
	__attribute__((noinline)) unsigned long name(unsigned long x) \
	{                                                             \
		unsigned long y = next(x);                            \
		__asm__ volatile("" : "+r"(y));                       \
		return y + 1;                                         \
	}

LINK(f27, f28)
LINK(f26, f27)
LINK(f25, f26)
LINK(f24, f25)
LINK(f23, f24)
LINK(f22, f23)
LINK(f21, f22)
LINK(f20, f21)
LINK(f19, f20)
LINK(f18, f19)
LINK(f17, f18)
LINK(f16, f17)
LINK(f15, f16)
LINK(f14, f15)
LINK(f13, f14)
LINK(f12, f13)
LINK(f11, f12)
LINK(f10, f11)
LINK(f9, f10)
LINK(f8, f9)
LINK(f7, f8)
LINK(f6, f7)
LINK(f5, f6)
LINK(f4, f5)
LINK(f3, f4)
LINK(f2, f3)
LINK(f1, f2)

static unsigned long long now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(atoi(argv[1]), &set);
	if (sched_setaffinity(0, sizeof(set), &set) != 0) {
		perror("sched_setaffinity");
		return 1;
	}
	unsigned long units = strtoul(argv[2], NULL, 10);
	unsigned long x = 1;
	unsigned long long start = now_ns();
	for (unsigned long done = 0; units == 0 || done < units; done++)
		x = f1(x);
	unsigned long long took = now_ns() - start;
	__asm__ volatile("" : : "r"(x));
	printf("%llu\n", took);
	return 0;
}
