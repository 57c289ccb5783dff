// SPDX-License-Identifier: Apache-2.0

package watch

import (
	discoveryv1 "k8s.io/api/discovery/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The API's limits of a slice and of an endpoint.
const (
	maxEndpoints = 1000
	maxAddresses = 100
	maxPorts     = 20000
	maxTopology  = 16
	maxHints     = 8
)

// validateSlice is what the API server checks of a slice outside its endpoints (ValidateEndpointSlice).
func validateSlice(in *discoveryv1.EndpointSlice) field.ErrorList {
	errs := validateMeta(&in.ObjectMeta, true, apivalidation.NameIsDNSSubdomain)
	errs = append(errs, oneOf(field.NewPath("addressType"), in.AddressType,
		discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)...)
	errs = append(errs, tooMany(field.NewPath("endpoints"), len(in.Endpoints), maxEndpoints)...)
	errs = append(errs, tooMany(field.NewPath("ports"), len(in.Ports), maxPorts)...)
	names := map[string]bool{}
	for i, p := range in.Ports {
		path, name := field.NewPath("ports").Index(i), deref(p.Name)
		errs = append(errs, validateSlicePort(p, path)...)
		if names[name] {
			errs = append(errs, field.Duplicate(path.Child("name"), name))
		}
		names[name] = true
	}
	return errs
}

func validateSlicePort(p discoveryv1.EndpointPort, path *field.Path) (errs field.ErrorList) {
	if name := deref(p.Name); name != "" {
		errs = append(errs, invalid(path.Child("name"), name, validation.IsDNS1123Label(name))...)
	}
	errs = append(errs, validateProtocol(path.Child("protocol"), protocolOf(p))...)
	if number := deref(p.Port); number != 0 {
		errs = append(errs, invalid(path.Child("port"), number, validation.IsValidPortNum(int(number)))...)
	}
	return append(errs, validateAppProtocol(path.Child("appProtocol"), p.AppProtocol)...)
}

// validateEndpoint is what the API server checks of one endpoint.
func validateEndpoint(in *discoveryv1.Endpoint, family discoveryv1.AddressType, path *field.Path) field.ErrorList {
	errs := validateAddresses(in.Addresses, family, path.Child("addresses"))
	if in.NodeName != nil {
		errs = append(errs, invalid(path.Child("nodeName"), *in.NodeName, validation.IsDNS1123Subdomain(*in.NodeName))...)
	}
	if in.Hostname != nil {
		errs = append(errs, invalid(path.Child("hostname"), *in.Hostname, validation.IsDNS1123Label(*in.Hostname))...)
	}
	errs = append(errs, tooMany(path.Child("topology"), len(in.DeprecatedTopology), maxTopology)...)
	errs = append(errs, metavalidation.ValidateLabels(in.DeprecatedTopology, path.Child("topology"))...)
	if in.Hints == nil {
		return errs
	}
	errs = append(errs, validateHints(zoneHints(in.Hints), path.Child("hints", "forZones"))...)
	return append(errs, validateHints(nodeHints(in.Hints), path.Child("hints", "forNodes"))...)
}

func validateAddresses(addresses []string, family discoveryv1.AddressType, path *field.Path) field.ErrorList {
	if len(addresses) == 0 {
		return field.ErrorList{field.Required(path, "must contain at least 1 address")}
	}
	errs := tooMany(path, len(addresses), maxAddresses)
	for i, s := range addresses {
		addr, ok := parseAddr(s)
		switch {
		case !ok:
			errs = append(errs, field.Invalid(path.Index(i), s, "must be a valid IP address"))
		case addr.Is4() != (family == discoveryv1.AddressTypeIPv4):
			errs = append(errs, field.Invalid(path.Index(i), s, "must be a valid "+string(family)+" address"))
		case special(addr) != "":
			errs = append(errs, field.Invalid(path.Index(i), s, special(addr)))
		}
	}
	return errs
}

// validateHints checks the names of one list of hints, which are sorted.
func validateHints(names []string, path *field.Path) field.ErrorList {
	errs := tooMany(path, len(names), maxHints)
	for i, name := range names {
		errs = append(errs, validateLabelValue(path, name)...)
		if i > 0 && name == names[i-1] {
			errs = append(errs, field.Duplicate(path, name))
		}
	}
	return errs
}

func validateLabelValue(path *field.Path, value string) field.ErrorList {
	return invalid(path, value, validation.IsValidLabelValue(value))
}

func tooMany(path *field.Path, got, limit int) field.ErrorList {
	if got <= limit {
		return nil
	}
	return field.ErrorList{field.TooMany(path, got, limit)}
}
