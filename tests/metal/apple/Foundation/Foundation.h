// The part of Foundation that native/metal/device.mm uses, as Apple documents it: to check the file where there is no SDK.
#pragma once

#define __MAC_OS_X_VERSION_MAX_ALLOWED 150000

typedef unsigned long NSUInteger;
#define nil nullptr
#define NO ((bool)0)
#define YES ((bool)1)

__attribute__((objc_root_class))
@interface NSObject
+ (instancetype)alloc;
- (instancetype)init;
@end

@interface NSString : NSObject
+ (instancetype)stringWithUTF8String:(const char*)text;
@property(readonly) const char* UTF8String;
@end

@interface NSError : NSObject
@property(readonly, copy) NSString* localizedDescription;
@end
