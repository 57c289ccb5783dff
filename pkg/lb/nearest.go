// SPDX-License-Identifier: Apache-2.0

package lb

// Nearest is the word that few letters make of another, which was meant most likely; "" none.
func Nearest(word string, of []string) (near string) {
	least := len(word)/3 + 2
	for _, other := range of {
		if d := distance(word, other); d < least {
			least, near = d, other
		}
	}
	return near
}

// distance is Levenshtein's: how many letters have to be put in, taken out or replaced.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			changed := before
			if a[i] != b[j] {
				changed++
			}
			before = row[j+1]
			row[j+1] = min(changed, row[j]+1, before+1)
		}
	}
	return row[len(b)]
}
