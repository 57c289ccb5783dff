// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"time"
)

// auditPolicy has the API server write down every request of every ServiceAccount, when it is answered.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts"]
- level: None
`

// Request is one that the API server answered.
type Request struct {
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
		APIGroup    string `json:"apiGroup"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Received    time.Time         `json:"requestReceivedTimestamp"`
	UserAgent   string            `json:"userAgent"`
	Annotations map[string]string `json:"annotations"`
}

// String is what was asked, and the answer.
func (r Request) String() string {
	return fmt.Sprintf("%s %s %s: %d", r.User.Username, r.Verb, r.RequestURI, r.ResponseStatus.Code)
}

// Refused tells whether the one who asked was not allowed to, or not known.
func (r Request) Refused() bool {
	return r.Annotations["authorization.k8s.io/decision"] == "forbid" ||
		r.ResponseStatus.Code == http.StatusForbidden || r.ResponseStatus.Code == http.StatusUnauthorized
}

// span is a time between two moments.
type span struct{ from, to time.Time }

func (p *Plane) wasStarting(at time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.starts, func(s span) bool { return at.After(s.from) && at.Before(s.to) })
}

// Audited are all requests of a ServiceAccount so far, named as system:serviceaccount:NAMESPACE:NAME. Watches are there twice:
// as they began and as they ended.
func (p *Plane) Audited(user string) ([]Request, error) {
	file, err := os.Open(p.File("audit.log"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var requests []Request
	for in := bufio.NewReader(file); ; {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return requests, nil // what there is of a last line is being written
		}
		var r Request
		if err == nil {
			err = json.Unmarshal(line, &r)
		}
		if err != nil {
			return nil, fmt.Errorf("read audit log: %w", err)
		}
		if r.User.Username == user {
			requests = append(requests, r)
		}
	}
}

// CheckAudit fails for every request of a ServiceAccount that was refused, for every one for Endpoints, and if there was no
// request at all, which would say that the audit sees nothing. An API server that starts refuses everybody until it has read who
// may do what: that is not counted.
func (p *Plane) CheckAudit(user string) error {
	requests, err := p.Audited(user)
	if err == nil && len(requests) == 0 {
		err = fmt.Errorf("audit: no request of %s", user)
	}
	errs := []error{err}
	for _, r := range requests {
		if r.Refused() && !p.wasStarting(r.Received) {
			errs = append(errs, fmt.Errorf("audit: refused: %v", r))
		}
		if r.ObjectRef.Resource == "endpoints" {
			errs = append(errs, fmt.Errorf("audit: a request for Endpoints: %v", r))
		}
	}
	return errors.Join(errs...)
}
