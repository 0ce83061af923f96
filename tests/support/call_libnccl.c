/* Calls internal functions of one libnccl on memory that a script on standard input lays out; prints what they leave.
 *
 *     call_libnccl LIBRARY ANCHOR < SCRIPT
 *
 * ANCHOR is the address of ncclGetVersion in the file, hexadecimal. A line of the script is one of
 *     new BYTES                        a block of zeros; blocks are numbered from 0
 *     set BLOCK OFFSET HEX             bytes into a block
 *     point BLOCK OFFSET BLOCK         a pointer into a block
 *     call ADDRESS [bBLOCK|NUMBER]...  a function with up to eight pointers and integers; prints what it returns
 *     print BLOCK OFFSET BYTES         a block's bytes, hexadecimal, after "= "
 * Exit code 2 for a library that does not load, 3 for a line that is none of these.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 1 << 16, ARGUMENTS = 8, LINE = 1 << 20 };

typedef int64_t function(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);

static unsigned char *blocks[BLOCKS];
static int count;
static char line[LINE];

static void set(unsigned char *to, const char *hex) {
  for (unsigned byte; sscanf(hex, "%2x", &byte) == 1; hex += 2) *to++ = (unsigned char)byte;
}

static int64_t call(uintptr_t address, char *words) {
  int64_t given[ARGUMENTS] = {0};
  int used = 0;
  for (char *word = strtok(words, " \n"); word != NULL && used < ARGUMENTS; word = strtok(NULL, " \n")) {
    given[used++] = *word == 'b' ? (int64_t)(intptr_t)blocks[atoi(word + 1)] : strtoll(word, NULL, 0);
  }
  function *called = (function *)address;
  return called(given[0], given[1], given[2], given[3], given[4], given[5], given[6], given[7]);
}

int main(int argc, char **argv) {
  void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (library == NULL) return fprintf(stderr, "%s\n", argc == 3 ? dlerror() : "LIBRARY ANCHOR"), 2;
  uintptr_t base = (uintptr_t)dlsym(library, "ncclGetVersion") - strtoull(argv[2], NULL, 16);
  while (fgets(line, LINE, stdin) != NULL) {
    size_t block, offset, third;
    uintptr_t address;
    int read = 0;
    if (sscanf(line, "new %zu", &third) == 1 && count < BLOCKS) {
      blocks[count++] = calloc(1, third);
    } else if (sscanf(line, "set %zu %zu %n", &block, &offset, &read) == 2 && read) {
      set(blocks[block] + offset, line + read);
    } else if (sscanf(line, "point %zu %zu %zu", &block, &offset, &third) == 3) {
      memcpy(blocks[block] + offset, &blocks[third], sizeof blocks[third]);
    } else if (sscanf(line, "call %lx%n", &address, &read) == 1 && read) {
      printf("%lld\n", (long long)call(base + address, line + read));
    } else if (sscanf(line, "print %zu %zu %zu", &block, &offset, &third) == 3) {
      printf("= ");
      for (size_t byte = 0; byte < third; byte++) printf("%02x", blocks[block][offset + byte]);
      printf("\n");
    } else {
      return fprintf(stderr, "unknown line: %s", line), 3;
    }
  }
  return 0;
}
