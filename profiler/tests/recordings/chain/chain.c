// cc -static -nostdlib -O1 -fno-omit-frame-pointer -fno-stack-protector -Wl,--build-id -o chain chain.c
// Two processes that spend their time in inner, below outer, below main, and in the kernel. x86_64.

static long call(long number, long first, long second) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second) : "rcx", "r11", "memory");
    return result;
}

__attribute__((noinline)) void inner(void) {
    for (volatile long i = 0; i < 2000; i++) {
    }
    call(110 /* getppid */, 0, 0);
    __asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) void outer(void) {
    for (int i = 0; i < 100; i++) {
        inner();
        __asm__ volatile("" ::: "memory");
    }
    __asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) int main(void) {
    // The child has another name, with what ends a frame in collapsed stacks, and ends with its parent.
    if (call(57 /* fork */, 0, 0) == 0) {
        call(157 /* prctl */, 15 /* PR_SET_NAME */, (long)";child");
        call(157 /* prctl */, 1 /* PR_SET_PDEATHSIG */, 9);
    }
    for (;;) {
        outer();
        __asm__ volatile("" ::: "memory");
    }
}

__attribute__((naked, noreturn)) void _start(void) {
    __asm__ volatile("xor %ebp, %ebp\n\tcall main\n\tud2");
}
