/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* lookup prints the addresses that a C library finds for a name, as curl and most programs ask for them. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

int main(int argc, char **argv)
{
	struct addrinfo want, *found;

	memset(&want, 0, sizeof(want));
	want.ai_socktype = SOCK_STREAM;
	if (argc != 2 || getaddrinfo(argv[1], NULL, &want, &found))
		return 2;
	for (; found; found = found->ai_next) {
		char text[NI_MAXHOST];

		if (!getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof(text), NULL, 0, NI_NUMERICHOST))
			puts(text);
	}
	return 0;
}
